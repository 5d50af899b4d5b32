"""The doctor's checks."""
