"""Small worlds in which a theory can be checked to the last state: a folder each."""
