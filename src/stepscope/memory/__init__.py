"""Memory snapshots of the caching allocator: safe reading, replay, simulation, and questions."""
