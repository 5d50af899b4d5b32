"""A run that is being written."""
