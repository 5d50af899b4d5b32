"""What a sampler could not read: one entry per item, however often it occurred."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from stepscope.run.metrics import Note

_MOST = 200


class Notes:
    """The entries so far, in order of arrival; at most two hundred different ones."""

    def __init__(self, added: Callable[[Note], None] | None = None) -> None:
        self._entries: dict[tuple[str, str], Note] = {}
        self._added = added
        self.changes = 0

    def add(self, what: str, why: object) -> None:
        """Add a note, once."""
        # Messages of other libraries may have several lines.
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
        """All entries."""
        return tuple(self._entries.values())


class Rates:
    """Converts counters that only grow into rates per second."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, int]] = {}

    def per_second(self, key: str, value: int | None, now_ns: int) -> float | None:
        """Growth per second since the last call for `key`.

        None for the first call, without a value, and if the counter restarted.
        """
        if value is None:
            self._last.pop(key, None)
            return None
        before, self._last[key] = self._last.get(key), (value, now_ns)
        if before is None or now_ns <= before[1] or value < before[0]:
            return None
        return (value - before[0]) * 1e9 / (now_ns - before[1])
