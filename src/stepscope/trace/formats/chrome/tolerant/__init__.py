"""Events read in Python, however damaged: slow, and the measure for the scanner."""
