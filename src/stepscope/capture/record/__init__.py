"""What a capture writes while it runs, and what it measures beside the training."""
