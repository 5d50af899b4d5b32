"""The options of a capture: checked once, and the schedule that follows from them."""
