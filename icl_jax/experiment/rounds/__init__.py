"""Self-improving rounds."""
