"""Text that a model continues."""
