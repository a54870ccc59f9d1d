"""From text files to documents, sentences, tokens, and the sentence table."""
