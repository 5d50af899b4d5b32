"""Metrics of a running or finished run, for the systems where people watch them."""
