"""Single calls: where they stand, what they were called with, what they stand for."""
