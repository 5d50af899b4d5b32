"""What a sampler could not read: one entry for each thing, however often it happened."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from stepscope.run.metrics import Note

_MOST = 200


class Notes:
    """The entries so far, in the order in which they came; at most two hundred different ones.

    Args:
        added: Called with each new entry.

    Attributes:
        changes: Grows with each new entry.
    """

    def __init__(self, added: Callable[[Note], None] | None = None) -> None:
        self._entries: dict[tuple[str, str], Note] = {}
        self._added = added
        self.changes = 0

    def add(self, what: str, why: object) -> None:
        """Note something, once."""
        # What strangers' libraries say may have several lines.
        reason = " ".join(str(why).split()) or "no reason was given"
        known = self._entries.get((what, reason))
        if known is not None:
            self._entries[what, reason] = dataclasses.replace(known, times=known.times + 1)
        elif len(self._entries) < _MOST:
            note = Note(what, reason, time.time_ns())
            self._entries[what, reason] = note
            self.changes += 1
            if self._added is not None:
                self._added(note)

    @property
    def entries(self) -> tuple[Note, ...]:
        """All of them."""
        return tuple(self._entries.values())


class Rates:
    """Turns counters that only grow into amounts per second."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, int]] = {}

    def per_second(self, key: str, value: int | None, now_ns: int) -> float | None:
        """Growth per second since the last call for `key`.

        None for the first call, where there is no value, and where the counter began anew.
        """
        if value is None:
            self._last.pop(key, None)
            return None
        before, self._last[key] = self._last.get(key), (value, now_ns)
        if before is None or now_ns <= before[1] or value < before[0]:
            return None
        return (value - before[0]) * 1e9 / (now_ns - before[1])
