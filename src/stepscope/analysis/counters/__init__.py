"""What a trace counts over time: memory, launched work that waits, hardware metrics."""
