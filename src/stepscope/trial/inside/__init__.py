"""What runs inside the training process while a fix is tried."""
