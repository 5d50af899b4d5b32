"""What became of a training that was launched."""
