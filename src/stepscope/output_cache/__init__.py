"""Outputs of verbs, cached in the stores of the traces that they are about."""
