"""The memory of a run as a history that the memory room can answer questions about."""
