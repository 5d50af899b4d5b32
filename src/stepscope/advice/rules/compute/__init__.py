"""Rules about what the device, or a CPU, computes."""
