"""The memory of a run as a history that `memory` can answer questions about."""
