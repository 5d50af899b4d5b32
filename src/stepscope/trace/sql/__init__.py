"""Read-only SQL over a trace."""
