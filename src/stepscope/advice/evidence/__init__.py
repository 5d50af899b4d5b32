"""What the rules look at: a recorded window, the step record, the other ranks."""
