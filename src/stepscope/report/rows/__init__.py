"""Rows of a query, one module per output."""
