"""The steps of the loop: their times, phases and waits, at a cost of microseconds."""
