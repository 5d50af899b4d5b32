"""Brings clocks together: those of different ranks, and those of a host and its GPU."""
