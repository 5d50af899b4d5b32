"""Answers to questions about traces, one module per output."""
