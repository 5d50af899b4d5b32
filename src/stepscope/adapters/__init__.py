"""Doors into the capture: arguments in several dialects, launching without code, drop-ins."""
