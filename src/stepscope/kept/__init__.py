"""Outputs of verbs, kept in the stores of the traces that they are about."""
