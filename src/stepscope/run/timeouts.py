"""How long a server may keep a reader waiting: in silence, and in all."""

from __future__ import annotations

import os
import time

from stepscope.errors import UnreadableInputError, UsageError

SILENCE_VARIABLE = "STEPSCOPE_REMOTE_TIMEOUT"
TOTAL_VARIABLE = "STEPSCOPE_REMOTE_TOTAL"
_SILENCE_SECONDS = 120.0
_TOTAL_SECONDS = 3600.0


def silence_seconds() -> float:
    """Returns how long a server may send nothing, or next to nothing.

    Raises:
        UsageError: `STEPSCOPE_REMOTE_TIMEOUT` is not a positive number.
    """
    return _seconds(SILENCE_VARIABLE, _SILENCE_SECONDS)


def total_seconds() -> float:
    """Returns how long reading one file or one run may take.

    Raises:
        UsageError: `STEPSCOPE_REMOTE_TOTAL` is not a positive number.
    """
    return _seconds(TOTAL_VARIABLE, _TOTAL_SECONDS)


class Deadline:
    """The end of the time for one file or one run, from now on.

    Args:
        name: What is read, for the message.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._seconds = total_seconds()
        self._end = time.monotonic() + self._seconds

    def check(self) -> None:
        """Does nothing until the time is over.

        Raises:
            UnreadableInputError: It is over.
        """
        if time.monotonic() > self._end:
            raise UnreadableInputError(
                f"{self._name}: not complete after {self._seconds:g} s; copy it to a local disk"
                f" ({TOTAL_VARIABLE}=SECONDS raises the limit)"
            )


def _seconds(variable: str, default: float) -> float:
    given = os.environ.get(variable)
    if given is None:
        return default
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise UsageError(f"{variable}={given} is not a positive number of seconds")
    return seconds
