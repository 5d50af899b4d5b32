"""Answers to a question about a snapshot, one module per output."""
