"""What the papers prove about these networks, in numbers: separation ranks, and shapes."""
