"""Reporters lay out results for a terminal or a program. They compute nothing."""
