"""The allocator's history, replayed: what was alive and reserved at any time."""
