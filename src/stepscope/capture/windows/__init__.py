"""Windows: recorded, handed over, finished beside the training."""
