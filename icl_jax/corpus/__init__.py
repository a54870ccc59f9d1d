"""Text in: documents, sentences, tokens, and the sentence table."""
