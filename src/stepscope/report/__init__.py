"""Reporters: they lay out results for a terminal or a program, and compute nothing."""
