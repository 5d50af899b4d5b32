"""Samplers beside a training: the GPUs' drivers, the host and its control group, the processes."""
