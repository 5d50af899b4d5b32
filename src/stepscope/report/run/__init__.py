"""What a run's directory holds, one module per output."""
