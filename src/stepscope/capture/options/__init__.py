"""The options of a capture, and the schedule that they describe."""
