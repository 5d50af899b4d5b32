"""How much of one input is unpacked or read: bombs and endless streams stop here.

A file of a few megabytes can unpack to terabytes, and a stream need not end. Recorders' files pack
10 to 30 times and hold an event every few hundred bytes, 8 when packed, so that all limits are far
above them. `STEPSCOPE_INPUT_LIMIT` replaces all of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from stepscope.errors import UnreadableInputError, UsageError
from stepscope.trace.problems import Problems

VARIABLE = "STEPSCOPE_INPUT_LIMIT"
"""Environment variable with a size such as "200GB"."""
REMEDY = f"{VARIABLE}=SIZE, such as 200GB, raises it"
MOST_RATIO = 100
"""Unpacked bytes for each packed byte."""
ALWAYS_BYTES = 256 * 1024**2
"""What any packed file may unpack to."""
ENDLESS_BYTES = 64 * 1024**3
"""Read of a stream of unknown size."""
WITHOUT_EVENTS_BYTES = 64 * 1024**2
"""Read without an event, of a packed file or a stream of unknown size."""
PACKED_BYTES_PER_EVENT = 2
"""What an event takes at least in a packed file. Short ones take more in memory than as text."""
ALWAYS_EVENTS = 1_000_000
"""Events that any packed file may have."""
_BLOCKS_AHEAD = 16
"""Blocks that may have been read before the events in the first of them are recognised."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


@dataclass(frozen=True)
class Limits:
    """The limits for one input; None where there is none.

    Attributes:
        total_bytes: Bytes to read, unpacked.
        without_events_bytes: Bytes to read without an event among them.
    """

    total_bytes: int | None
    without_events_bytes: int | None
    events: int | None = None


def limits_of(size_bytes: int | None, *, is_packed: bool) -> Limits:
    """Returns the limits for an input.

    Args:
        size_bytes: Its size as stored; None if unknown.
    """
    if size_bytes is not None and not is_packed:
        return Limits(None, None)
    given = os.environ.get(VARIABLE)
    if given:
        size = _parsed(given)
        return Limits(size, size)
    if size_bytes is None:
        return Limits(ENDLESS_BYTES, WITHOUT_EVENTS_BYTES)
    events = max(ALWAYS_EVENTS, size_bytes // PACKED_BYTES_PER_EVENT)
    return Limits(max(ALWAYS_BYTES, MOST_RATIO * size_bytes), WITHOUT_EVENTS_BYTES, events)


def _parsed(given: str) -> int:
    match = _SIZE.fullmatch(given.strip())
    if match is None or not float(match.group(1)):
        raise UsageError(f"{VARIABLE}={given} is not a size such as 200GB")
    base = 1024 if match.group(3) else 1000
    return int(float(match.group(1)) * base ** _POWERS[match.group(2).lower()])


def shown(size_bytes: int) -> str:
    """Returns a limit as people write it."""
    for unit, power in (("GiB", 3), ("MiB", 2)):
        if size_bytes >= 1024**power and size_bytes % 1024**power == 0:
            return f"{size_bytes // 1024**power} {unit}"
    return f"{size_bytes / 1e9:.3g} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:.3g} MB"


class Limited:
    """Passes on the pieces of one input until a limit is reached.

    Args:
        problems: Gets an entry where a limit ends the input.
    """

    def __init__(self, name: str, limits: Limits, problems: Problems, block_bytes: int) -> None:
        self._ahead = _BLOCKS_AHEAD * block_bytes
        self._name = name
        self._limits = limits
        self._problems = problems
        self._total = 0
        self._last_event = -1  # bytes that had been read when the last event was recognised
        self._events = 0

    def recognised(self, events: int) -> None:
        """Marks the input as a trace, with so many events more."""
        self._last_event = self._total
        self._events += events

    def only_total(self) -> None:
        """Says that the content has no events: only the total is limited."""
        self._limits = Limits(self._limits.total_bytes, None)

    def passed_on(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Yields the pieces within the limits."""
        for piece in pieces:
            total, without = self._limits.total_bytes, self._limits.without_events_bytes
            if total is not None and self._total + len(piece) > total:
                if without is None:
                    raise self._refusal(f"holds more than {shown(total)}")
                self._problems.add("input_limit", total, detail=f"limit {shown(total)}; {REMEDY}")
                yield from filter(None, [piece[: total - self._total]])
                return
            most = self._limits.events
            if most is not None and self._events > most:
                detail = f"limit {most:,} events; {REMEDY}"
                self._problems.add("input_limit", self._total, detail=detail)
                return
            since = self._total - max(self._last_event, 0)
            if without is not None and since > max(without, self._ahead):
                if self._last_event < 0:
                    raise self._refusal(f"has no event in {shown(without)}")
                detail = f"limit {shown(without)}; {REMEDY}"
                self._problems.add("no_more_events", self._total, detail=detail)
                return
            self._total += len(piece)
            yield piece

    def _refusal(self, reason: str) -> UnreadableInputError:
        return UnreadableInputError(
            f"{self._name}: {reason}, unpacked, so this is not a recorder's file; {REMEDY}"
        )
