"""Traces: readers for every format, the tables they fill, and what is derived from them."""
