"""The outcome of a launched training."""
