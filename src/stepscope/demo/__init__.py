"""The demonstration: a small real training with a planted bottleneck, run in its own process."""
