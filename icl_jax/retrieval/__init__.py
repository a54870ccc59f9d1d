"""Related sentences: vectors, search, neighbours."""
