"""The demo: what it does and finds."""
