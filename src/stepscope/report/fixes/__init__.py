"""The fixes that can be tried."""
