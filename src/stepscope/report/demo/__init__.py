"""What the demo does and finds, one module per output."""
