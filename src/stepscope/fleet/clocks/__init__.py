"""Brings the clocks of ranks together."""
