"""Whole-array tools without knowledge of traces: intervals, orders, search, compiled loops."""
