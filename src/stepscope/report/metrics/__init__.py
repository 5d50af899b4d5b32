"""Hardware metrics, one module per output."""
