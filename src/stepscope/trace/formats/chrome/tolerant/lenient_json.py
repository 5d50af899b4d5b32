"""Reads single values of almost-valid JSON, with the mistakes repaired that recorders often make.

`scanner/repair_events.py` says which, and repairs them, for blocks of events as well. Anything else
raises `LenientError`.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

_PIECE = 64 * 1024  # characters; most values are shorter
_LARGER = 16
_MOST_BYTES_EACH = 6
"""How many bytes repair makes of one at most: the escape of a control character."""


class LenientError(ValueError):
    """The text is not even almost-valid JSON, or ends too early.

    Attributes:
        at_end: Whether more text could make it readable.
    """

    def __init__(self, at_end: bool) -> None:
        super().__init__("ends early" if at_end else "cannot be read")
        self.at_end = at_end


def repaired(text: str, at: int, final: bool) -> tuple[str, int]:
    """Repairs the value at `at`.

    Args:
        final: Whether no more text follows.

    Returns:
        The value as standard JSON, and the position after it in the text.

    Raises:
        LenientError: It cannot be repaired. `at_end` tells whether the text ends too early.
    """
    from stepscope.trace.formats.chrome.scanner.repair_strings import ALMOST, ALMOST_ESCAPED

    size = _PIECE
    while True:
        piece, is_whole = text[at : at + size], at + size >= len(text)
        standard, end = _copied(piece, ALMOST)
        if standard is None and (end < len(piece) or (is_whole and final)):
            # A string that ends in an unescaped backslash seems to continue.
            standard, end = _copied(piece, ALMOST_ESCAPED)
        if standard is not None:
            return standard, at + end
        if is_whole or end < len(piece):
            raise LenientError(at_end=end >= len(piece))
        size *= _LARGER


def _copied(text: str, mode: int) -> tuple[str | None, int]:
    """The value that a text begins with, repaired; None if it cannot be. And where it ends.

    If it cannot be repaired, that is the position from which on it cannot.
    """
    from stepscope.trace.formats.chrome.scanner import repair_events as machine
    from stepscope.trace.formats.chrome.scanner.repair_strings import MARGIN
    from stepscope.trace.formats.chrome.scanner.scan_bytes import PADDING

    content = text.encode("utf-8", "surrogateescape")
    data = np.frombuffer(content + bytes(PADDING), np.uint8)
    for bytes_each in (2, _MOST_BYTES_EACH):
        capacity = bytes_each * len(content) + 2 * MARGIN
        copy, job = np.empty(capacity, np.uint8), np.zeros(machine.JOB_FIELDS, np.int64)
        job[machine.SOURCE], job[machine.SOURCE_END] = data.ctypes.data, len(content)
        job[machine.TARGET], job[machine.CAPACITY] = copy.ctypes.data, capacity
        job[machine.ALONE] = mode
        try:
            status = machine.repair(job.ctypes.data)
        except OSError:  # as in a frozen program, whose source code cannot be compiled
            return None, 0
        if status != machine.COPY_FULL:
            break
    end = len(content[: int(job[machine.AT])].decode("utf-8", "surrogateescape"))
    if status != machine.MORE:
        return None, end
    return copy[: int(job[machine.USED])].tobytes().decode(), end


def read_lenient(text: str, at: int, final: bool) -> tuple[Any, int]:
    """Like `repaired`, but returns the value itself."""
    standard, end = repaired(text, at, final)
    return json.loads(standard), end
