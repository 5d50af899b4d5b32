"""A simulator of torch's caching allocator, and what it is set to."""
