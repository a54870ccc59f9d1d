"""What a model has learned: sentence similarity, questions, zero-shot GLUE, perplexity."""
