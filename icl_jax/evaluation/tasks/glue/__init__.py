"""Zero-shot GLUE."""
