"""Rules about the host: launches, Python, blocking calls, the CPUs."""
