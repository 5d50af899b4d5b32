"""The dependency graph of the steps, and its replay with other durations."""
