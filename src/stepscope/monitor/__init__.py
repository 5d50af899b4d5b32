"""Samples hardware during a training: GPUs, host, control group and processes."""
