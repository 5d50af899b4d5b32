"""Wing 2, offline: readers of trace files, their tables, and what is derived from them."""
