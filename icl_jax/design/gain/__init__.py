"""Groups that a model finds easier in context than apart."""
