"""Exports and reports of Nsight Systems."""
