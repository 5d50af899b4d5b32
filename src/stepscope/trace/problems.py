"""Problems found while reading, counted by kind with the offset of the first."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

MESSAGES = {
    "invalid_utf8": "replaced bytes that are not UTF-8 and unpaired surrogates with U+FFFD "
    "(counted per event)",
    "invalid_json": "repaired events that are not valid JSON",
    "salvaged": "kept only the recognisable fields of events beyond repair; "
    "their text, up to a million characters, is in args under 'unparsed'",
    "skipped": "skipped text in which no event could be recognised",
    "not_an_event": "skipped elements of the list of events that are not objects",
    "stray_comma": "ignored missing or extra commas between events",
    "extra_keys": "dropped keys of events that the tables have no column for",
    "no_phase": "skipped events without a phase ('ph')",
    "phase_not_kept": "skipped events of phases that the tables do not hold",
    "no_time": "skipped events without a usable time ('ts')",
    "no_duration": "set missing or unusable durations to 0",
    "negative_duration": "set negative durations to 0",
    "overflowed_duration": "set durations to 0 where the end does not fit 64 bits of nanoseconds",
    "zero_time": "skipped GPU events at time 0 with duration 0, which never completed",
    "identifier_out_of_range": "dropped identifiers that do not fit 64 bits",
    "unmatched_end": "skipped ends ('E', 'e', 'F') without a beginning",
    "unclosed": "closed events without an end ('B', 'b', 'S') at the end of the trace",
    "invalid_header": "repaired or skipped top-level values that are not valid JSON",
    "too_many_members": "dropped top-level values after the first 1,000",
    "duplicate_key": "kept all values of a top-level key that occurs more than once",
    "truncated": "the file is truncated; every complete event was kept",
    "truncated_stream": "the compressed stream is truncated; everything before that was kept",
    "corrupt_stream": "the compressed stream is corrupt; everything before that was kept",
    "input_limit": "stopped reading, because it unpacks to more than any recorder's file; "
    "every event before that was kept",
    "no_more_events": "stopped reading, because no event followed for long; every event before "
    "that was kept",
    "damaged_packets": "kept what could be read of packets that end in damage, or before their end",
    "relative_clock": "skipped events whose time counts from other events",
    "device_lanes_unknown": "lanes that look like a device's were not understood",
    "xla_on_cpu": "XLA computes on threads of the CPU, where waits look like work",
    "unknown_rate": "counted each sample as 10 ms, py-spy's default: the file does not say how "
    "many there were in a second, so shares are right and times may not be",
    "trailing_data": "ignored text after the end of the JSON document",
}
"""Every kind of problem, and how it was handled."""

READ_NO_FURTHER = (
    "truncated",
    "truncated_stream",
    "corrupt_stream",
    "input_limit",
    "no_more_events",
)
"""Problems of a file whose end is missing or was not read.

Kineto writes operators thread by thread, and then what the GPU did, in the order in which CUPTI's
buffers were filled. So it is not the last steps alone that lack something.
"""
LACKS_END = (
    "the end of the file is missing, so any step may lack work: torch writes operators thread by "
    "thread, then the GPU's work"
)
_WRITTEN_LAST = "Record Window End"
"""Kineto writes this mark after all events of a recording."""
LOSSES = (
    *READ_NO_FURTHER,
    "damaged_packets",
    "salvaged",
    "skipped",
    "invalid_json",
    "unclosed",
    "no_time",
    "no_duration",
    "negative_duration",
    "overflowed_duration",
)
"""Problems that make answers about the events wrong or incomplete."""


class Problems:
    """Counts problems by kind, with the offset of the first of each."""

    def __init__(self) -> None:
        self._tally: dict[str, tuple[int, int | None, str]] = {}

    def add(self, kind: str, offset: int | None, count: int = 1, detail: str = "") -> None:
        """Counts occurrences of one kind.

        Args:
            kind: A key of `MESSAGES`.
            offset: Byte offset of the first occurrence in the uncompressed file; None if unknown.
            detail: Appended to the message of the first occurrence.
        """
        if count <= 0:
            return
        seen, first, entry = self._tally.get(kind, (0, offset, detail))
        if offset is not None and (first is None or offset < first):
            first, entry = offset, detail
        self._tally[kind] = (seen + count, first, entry)

    def __bool__(self) -> bool:
        return bool(self._tally)

    def moved(self, to: Callable[[int], int], base: int) -> Problems:
        """Returns the same counts with each offset translated and then added to `base`."""
        result = Problems()
        for kind, (count, first, detail) in self._tally.items():
            result.add(kind, None if first is None else base + to(first), count, detail)
        return result

    def merge(self, other: Problems) -> None:
        """Adds the counts of another instance."""
        for kind, (count, offset, detail) in other._tally.items():
            self.add(kind, offset, count, detail)

    def count(self, kind: str) -> int:
        """Returns the number of occurrences of one kind."""
        return self._tally.get(kind, (0, None, ""))[0]

    def frame(self) -> pl.DataFrame:
        """Returns the table `problems` (see `schema.PROBLEMS`), ordered by kind."""
        import polars as pl  # sources are opened without it

        from stepscope.trace.schema import PROBLEMS

        rows = []
        for kind, (count, offset, detail) in sorted(self._tally.items()):
            message = MESSAGES[kind] + (f" ({detail})" if detail else "")
            rows.append((kind, count, None if offset is None else f"byte {offset}", message))
        return pl.DataFrame(rows, schema=PROBLEMS, orient="row")


def lacks_end(problems: pl.DataFrame, names: pl.DataFrame) -> bool:
    """Whether events at the end of a file are missing, so that any step may lack work.

    Args:
        names: The table `names`. A file that was cut off after the last event lacks nothing.
    """
    is_cut_off = problems["problem"].is_in(READ_NO_FURTHER).any()
    return bool(is_cut_off and not (names["name"] == _WRITTEN_LAST).any())


def counted(message: str, count: int) -> str:
    """A problem, with how often it occurred if that was more than once."""
    return f"{message} ({count:,}×)" if count > 1 else message


def describe_losses(problems: pl.DataFrame) -> tuple[str, ...]:
    """What makes answers about a trace wrong or incomplete, of its table `problems`."""
    return tuple(
        counted(message, count)
        for kind, count, message in problems["problem", "count", "message"].iter_rows()
        if kind in LOSSES
    )
