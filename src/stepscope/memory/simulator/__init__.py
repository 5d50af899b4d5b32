"""A model of torch's caching allocator: what it did, and would have done with other settings."""
