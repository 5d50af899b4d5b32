"""What a sampler of Python's stacks recorded, one module per output."""
