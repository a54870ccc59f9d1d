"""Which sentences share a training example: strategies, records, data card."""
