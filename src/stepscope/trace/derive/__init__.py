"""Columns and tables that are derived from a trace: nesting, links, kinds and steps."""
