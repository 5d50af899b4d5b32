"""Trace formats, behind one registry."""
