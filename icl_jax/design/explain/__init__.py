"""One record of an arm as readable text, and why it ends where it does."""
