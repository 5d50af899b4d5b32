"""Recording options and where their values come from, one module per output."""
