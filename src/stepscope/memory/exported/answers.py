"""What a memory timeline can answer: how much was held, when, and of which category.

It has neither single allocations nor stacks, addresses or segments, so all other questions about a
snapshot have no answer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.errors import UsageError
from stepscope.memory.exported.reading import ExportedTimeline, read_timelines, table_of
from stepscope.memory.questions.names import ABOUT, NamedQuestion
from stepscope.memory.questions.over_time import COLUMNS, Mark, OverTime
from stepscope.memory.questions.table import MemoryAnswer
from stepscope.memory.questions.time_columns import time_columns
from stepscope.memory.questions.timeline import shown_rows

_MOST_POINTS = 500
_NO_PARTS = ("time_ns", "allocated_bytes", "reserved_bytes")
_NOT_IN_IT = (
    "a memory timeline has no single allocations, lines, addresses, and nothing of the allocator's "
    "segments: record a snapshot (memory_history=True) for these"
)


@dataclass(frozen=True)
class ExportedTotals:
    """A memory timeline in numbers.

    Attributes:
        form: What wrote the file.
        device: The device, in words; None: the file does not say.
        allocations: How often memory was requested; None: the file does not say.
        span_ns: From the first moment to the last.
        peak_allocated_bytes: The most that was held at any moment.
        peak_time_ns: When it was first held.
        allocated_bytes: What was held at the last moment.
        reserved_bytes: The most that the allocator had reserved; None: the file does not say.
        replay_mismatches: None: there is nothing to hold a timeline against.
        categories: category, allocated_bytes, allocated_share at the peak; the most first. The
            timeline of a run has phases in place of categories.
        timeline: One row per moment, at most 500: for each interval that with the most held:
            time_ns, allocated_bytes, and the bytes of each category.
        notes: What a reader must know.
    """

    form: str
    device: str | None
    allocations: int | None
    span_ns: int
    peak_allocated_bytes: int
    peak_time_ns: int
    allocated_bytes: int
    reserved_bytes: int | None
    replay_mismatches: int | None
    categories: pl.DataFrame
    timeline: pl.DataFrame
    notes: tuple[str, ...]


_TITLES = {"categories": "Held at the peak, by category", "timeline": "Over time"}
_SHOWN = {
    "overview": _TITLES,
    "peak": _TITLES,
    "timeline": {name: _TITLES[name] for name in ("timeline", "categories")},
}
"""The questions that have an answer, and the tables that they show, in order."""


def answer_of_timeline(
    path: str, question: str, device: int | None = None, *, is_drawn: bool = False
) -> MemoryAnswer:
    """Answers a question about a memory timeline.

    Args:
        path: The file.
        question: The name of a question about snapshots.
        device: Of a file about several devices the GPU to answer about; None: the device of which
            most was held.
        is_drawn: Whether the answer should bring memory over time.

    Raises:
        UnreadableInputError: The file cannot be read.
        UsageError: It has no answer to the question, or not of that device.
    """
    if question not in _SHOWN:
        raise UsageError(
            f"{path}: no answer to '{question}', only to {', '.join(_SHOWN)}: {_NOT_IN_IT}"
        )
    timelines = read_timelines(path)
    chosen = _chosen(path, timelines, device)
    result = _totals(chosen, [one.device for one in timelines if one is not chosen])
    known = NamedQuestion(question, ABOUT[question], _SHOWN[question])
    drawn = _over_time(chosen) if is_drawn else None
    return MemoryAnswer(known, chosen.path, int(chosen.time_ns[0]), result, chosen.form, drawn)


def _chosen(path: str, timelines: list[ExportedTimeline], device: int | None) -> ExportedTimeline:
    if device is None:
        return max(timelines, key=_peak_bytes)
    found = [one for one in timelines if one.device == f"gpu {device}"]
    if not found:
        have = ", ".join(one.device for one in timelines if one.device)
        known = f"it has {have}" if have else "it does not say of which device it is"
        raise UsageError(f"{path}: nothing of device {device}; {known}")
    return found[0]


def _peak_bytes(timeline: ExportedTimeline) -> int:
    return int(table_of(timeline)["allocated_bytes"].to_numpy().max())


def _totals(timeline: ExportedTimeline, others: list[str]) -> ExportedTotals:
    table = table_of(timeline)
    held = table["allocated_bytes"].to_numpy()
    at = int(held.argmax())
    at_peak = table.drop(_NO_PARTS, strict=False).row(at, named=True)
    parts = {name: int(values) for name, values in at_peak.items() if values}
    categories = pl.DataFrame(
        {
            "category": [name.removesuffix("_bytes") for name in parts],
            "allocated_bytes": pl.Series(list(parts.values()), dtype=pl.Int64),
        },
        schema={"category": pl.String, "allocated_bytes": pl.Int64},
    ).with_columns(allocated_share=pl.col("allocated_bytes") / max(1, int(held[at])))
    notes = [_NOT_IN_IT]
    if any((values < 0).any() for values in timeline.parts.values()):
        notes.append(
            "some categories are negative at times: memory was freed under another category than "
            "it was requested under, or was requested before the recording"
        )
    if others:
        notes.append(f"the file has {', '.join(others)} as well: --device chooses one")
    times = table["time_ns"].to_numpy()
    reserved = table["reserved_bytes"].max() if "reserved_bytes" in table.columns else None
    return ExportedTotals(
        form=timeline.form,
        device=timeline.device or None,
        allocations=timeline.allocations,
        span_ns=int(times[-1] - times[0]),
        peak_allocated_bytes=int(held[at]),
        peak_time_ns=int(times[at]),
        allocated_bytes=int(held[-1]),
        reserved_bytes=reserved if isinstance(reserved, int) else None,
        replay_mismatches=None,
        categories=categories.sort("allocated_bytes", "category", descending=[True, False]),
        timeline=table[np.sort(shown_rows(times, held, _MOST_POINTS))],
        notes=tuple(notes),
    )


def _over_time(timeline: ExportedTimeline) -> OverTime:
    table = table_of(timeline)
    at = np.maximum.accumulate(table["time_ns"].to_numpy() - int(timeline.time_ns[0]))
    held = table["allocated_bytes"].to_numpy()
    has_reserved = "reserved_bytes" in table.columns
    reserved = table["reserved_bytes"].to_numpy() if has_reserved else held
    found = time_columns(at, held, reserved, int(at[0]), int(at[-1]) + 1, COLUMNS)
    shown = table.drop(_NO_PARTS, strict=False)[found.rows]
    # What is below nothing cannot be stacked: the whole is drawn undivided.
    is_divided = all((column.to_numpy() >= 0).all() for column in shown)
    parts = shown if is_divided else table.select("allocated_bytes")[found.rows]
    peak = int(held.argmax())
    return OverTime(
        device=timeline.device,
        is_by_event=False,
        start=found.start,
        step=found.step,
        allocated_bytes=tuple(map(int, held[found.rows].tolist())),
        reserved_bytes=tuple(map(int, found.reserved_bytes.tolist())) if has_reserved else None,
        bands=tuple(
            (column.name.removesuffix("_bytes"), tuple(map(int, column.to_list())))
            for column in parts
            if column.to_numpy().any()
        ),
        steps=(),
        peak=Mark(int(at[peak]), int(held[peak]), None),
        failed=(),
        failures=0,
    )
