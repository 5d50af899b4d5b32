"""What a trace file holds, one module per output."""
