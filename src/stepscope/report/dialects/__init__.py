"""What options are called in other frameworks, one module per output."""
