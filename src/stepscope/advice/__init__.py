"""Findings: one module per rule, each with its evidence and the saving it promises."""
