"""What the paper's runs would cost on TPU slices, by the real compiler and arithmetic."""
