"""Reads snapshots safely: nothing of a file is executed, and time and memory are bounded by it."""
