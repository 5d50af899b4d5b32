"""Two runs or traces side by side."""
