"""The steps of the loop: times, phases and waits, at a cost of microseconds."""
