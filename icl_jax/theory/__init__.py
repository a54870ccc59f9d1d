"""What the papers prove about these networks, as numbers: separation ranks, and shapes."""
