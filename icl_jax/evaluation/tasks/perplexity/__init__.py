"""Perplexity of documents and of records."""
