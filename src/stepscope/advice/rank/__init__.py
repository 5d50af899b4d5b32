"""One rank: its window read, its findings, its ladder, and its summary."""
