"""The demo: a small real training with a planted bottleneck, run in a separate process."""
