"""SQL over a trace, read-only."""
