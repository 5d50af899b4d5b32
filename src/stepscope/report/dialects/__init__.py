"""Option names of other frameworks, one module per output."""
