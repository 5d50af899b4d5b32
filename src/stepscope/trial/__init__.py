"""Trials: fixes applied to a real script without a word in it, and measured."""
