"""Recordings of py-spy, one module per output."""
