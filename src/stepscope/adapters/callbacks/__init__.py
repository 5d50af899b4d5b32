"""What the callbacks of several frameworks share."""
