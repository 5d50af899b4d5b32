"""Memory timelines as files: torch's export_memory_timeline, and the run's own."""
