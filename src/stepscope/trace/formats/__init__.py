"""Readers of trace files: one module or package per format, behind one registry."""
