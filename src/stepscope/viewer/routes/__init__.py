"""What the page can ask for, one module per group."""
