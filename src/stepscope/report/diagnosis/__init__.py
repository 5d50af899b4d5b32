"""The diagnosis of a run, one module per output."""
