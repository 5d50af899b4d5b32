"""Hands traces and runs over to other tools: Perfetto, other viewers, spreadsheets, metrics."""
