"""The rules of torch's caching allocator: what it is set to, and how it rounds."""
