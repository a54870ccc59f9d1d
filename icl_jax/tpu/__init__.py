"""TPUs: the table of chips, and what a step would cost on chips that you do not have."""
