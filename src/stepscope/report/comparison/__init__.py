"""The comparison of two runs, one module per output."""
