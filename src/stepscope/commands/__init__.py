"""The command line: one module per verb; each parses, calls and chooses a reporter."""
