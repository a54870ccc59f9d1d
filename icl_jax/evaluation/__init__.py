"""What a model has learned: the tasks, the comparison of models, and generation."""
