"""What a run directory holds, one module per output."""
