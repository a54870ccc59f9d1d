"""Which evaluation data occurs in the corpus."""
