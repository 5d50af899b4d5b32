"""The errors that Stepscope raises deliberately. Each says what is wrong, and the remedy."""

from __future__ import annotations

from collections.abc import Iterable


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


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """A hint at the nearest of the names that there are; where none is near, other words."""
    import difflib  # for a mistake only

    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean '{near[0]}'?" if near else otherwise
