"""The errors that Stepscope raises deliberately. Each says what is wrong, and the remedy."""

from __future__ import annotations


class StepscopeError(Exception):
    """Base of all errors that a user can fix.

    Attributes:
        exit_code: Exit code of the command line: 2 for wrong usage, 3 for unreadable input.
    """

    exit_code = 3


class UsageError(StepscopeError):
    """An option or argument is invalid; the message has its value and the remedy."""

    exit_code = 2


class UnreadableInputError(StepscopeError):
    """A file or directory cannot be read as what it should be."""


class NothingFoundError(UnreadableInputError):
    """A directory or pattern has neither a run nor a trace."""
