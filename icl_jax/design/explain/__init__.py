"""One record of an arm as people read it, and why it ends where it does."""
