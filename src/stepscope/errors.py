"""The errors that Stepscope raises on purpose: each names what is wrong, and the remedy."""

from __future__ import annotations


class StepscopeError(Exception):
    """Base of every error that a user can cause and mend.

    Attributes:
        exit_code: What the command line exits with: 2 for wrong usage, 3 for unreadable input.
    """

    exit_code = 3


class UsageError(StepscopeError):
    """An option or argument that cannot work, with its value and the remedy."""

    exit_code = 2


class UnreadableInputError(StepscopeError):
    """A file or directory that cannot be read as what it was given for."""
