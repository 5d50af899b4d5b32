"""What a reader had to repair, skip or doubt, counted by kind with the first place."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from stepscope.trace.schema import PROBLEMS

MESSAGES = {
    "invalid_utf8": "bytes that are not UTF-8, and halves of surrogate pairs, were replaced by "
    "U+FFFD (counted by event)",
    "invalid_json": "events that are not valid JSON were repaired",
    "salvaged": "events beyond repair: only the fields that could be recognised were kept, "
    "the text is in args under 'unparsed'",
    "skipped": "stretches in which no event could be recognised were skipped",
    "not_an_event": "elements of the list of events that are no objects were skipped",
    "stray_comma": "commas too many or too few between events were ignored",
    "extra_keys": "keys of events that the tables have no place for were not kept",
    "no_phase": "events without a phase ('ph') were skipped",
    "phase_not_kept": "events of phases that the tables have no place for were skipped",
    "no_time": "events without a usable time ('ts') were skipped",
    "no_duration": "durations that are missing or unusable were set to 0",
    "negative_duration": "negative durations were set to 0",
    "overflowed_duration": "durations that end beyond 64 bits of nanoseconds were set to 0",
    "zero_time": "GPU events at time 0 with duration 0 (never completed) were skipped",
    "identifier_out_of_range": "identifiers that do not fit 64 bits were left out",
    "unmatched_end": "ends ('E', 'e', 'F') without a beginning were skipped",
    "unclosed": "beginnings ('B', 'b', 'S') without an end were closed at the end of the trace",
    "invalid_header": "top-level values that are not valid JSON were repaired or skipped",
    "duplicate_key": "a top-level key occurs more than once; all are kept",
    "truncated": "the file ends before its JSON does; every whole event before that was kept",
    "truncated_stream": "the compressed stream ends early; everything before that was kept",
    "corrupt_stream": "the compressed stream is damaged; everything before that was kept",
    "trailing_data": "text after the end of the JSON document was ignored",
}
"""Every kind of problem and what was done about it."""


class Problems:
    """A tally of problems: how often each kind occurred, and where it occurred first."""

    def __init__(self) -> None:
        self._tally: dict[str, tuple[int, int | None, str]] = {}

    def add(self, kind: str, offset: int | None, count: int = 1, detail: str = "") -> None:
        """Counts occurrences of one kind.

        Args:
            kind: A key of `MESSAGES`.
            offset: In bytes, of the first of them in the uncompressed file; None: unknown.
            count: How many.
            detail: Added to the message of the first occurrence.
        """
        if count <= 0:
            return
        seen, first, said = self._tally.get(kind, (0, offset, detail))
        if offset is not None and (first is None or offset < first):
            first, said = offset, detail
        self._tally[kind] = (seen + count, first, said)

    def __bool__(self) -> bool:
        return bool(self._tally)

    def moved(self, to: Callable[[int], int]) -> Problems:
        """The same tally with every offset translated."""
        result = Problems()
        for kind, (count, first, detail) in self._tally.items():
            result.add(kind, None if first is None else to(first), count, detail)
        return result

    def merge(self, other: Problems) -> None:
        """Adds everything that another tally has counted."""
        for kind, (count, offset, detail) in other._tally.items():
            self.add(kind, offset, count, detail)

    def count(self, kind: str) -> int:
        """How often a kind was counted."""
        return self._tally.get(kind, (0, None, ""))[0]

    def frame(self) -> pl.DataFrame:
        """The table `problems` of `stepscope.trace.schema`, ordered by kind."""
        rows = []
        for kind, (count, offset, detail) in sorted(self._tally.items()):
            message = MESSAGES[kind] + (f" ({detail})" if detail else "")
            rows.append((kind, count, None if offset is None else f"byte {offset}", message))
        return pl.DataFrame(rows, schema=PROBLEMS, orient="row")
