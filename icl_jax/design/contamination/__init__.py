"""What of the evaluation data stands in the corpus."""
