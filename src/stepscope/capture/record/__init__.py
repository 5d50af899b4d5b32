"""What a capture writes down while it runs, and what is measured beside it."""
