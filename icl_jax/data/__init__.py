"""Records on disk, and the batches made of them."""
