"""Memory timelines: bytes by category over time, as torch.profiler exports them, and their answers.

Three forms are known by their content, compressed or not:
    torch's `.json`       [[times in µs], [[0, bytes of each category], …]]
    torch's `.raw.json`   [[time in ns, action, change in bytes, category], …]
    a run's own           {"format": "stepscope-memory-timeline", "devices": […]}

torch numbers the categories in the order of `CATEGORIES`. A change is negative for a release; -1 is
the time of what was there before the recording.

A timeline has neither single allocations nor stacks, addresses or segments, so most questions about
a snapshot have no answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stepscope.errors import UnreadableInputError, UsageError
from stepscope.memory.load import read_content
from stepscope.memory.questions.names import ABOUT, NamedQuestion
from stepscope.memory.questions.over_time import COLUMNS, Mark, OverTime
from stepscope.memory.questions.table import MemoryAnswer
from stepscope.memory.recognition import BEGINNING_BYTES, PAGE, is_timeline_file
from stepscope.memory.replay.arrays import Int64Array
from stepscope.run.side_json import parse_json
from stepscope.trace.arrays.time_columns import time_columns
from stepscope.trace.source.opening import beginning_of, open_source
from stepscope.trace.source.progress import Progress

CATEGORIES = (
    "parameter", "optimizer_state", "input", "temporary", "activation", "gradient",
    "autograd_detail", "unknown",
)  # fmt: skip
"""torch's categories in the order of their numbers."""

_THERE_BEFORE, _MADE = 1, 2
"""torch's numbers of actions; 3 is a change in place, 4 a release."""

_MOST_BYTES = 256 * 1024**2
"""Unpacked: some four million moments, which take about three gigabytes as numbers of Python's."""
_LONGEST_TIME_US = 2**53


@dataclass(frozen=True)
class ExportedTimeline:
    """A memory timeline.

    Attributes:
        form: What wrote it, in words.
        device: The device, in words; empty: the file does not say.
        parts: Bytes after each moment, by category or phase.
        allocations: How often memory was requested; None: the file does not say.
        reserved_bytes: What the allocator had reserved after each moment; None likewise.
    """

    path: str
    form: str
    device: str
    time_ns: Int64Array
    parts: dict[str, Int64Array]
    allocations: int | None
    reserved_bytes: Int64Array | None


def read_timelines(path: str) -> list[ExportedTimeline]:
    """The memory timelines in a file, one for each device.

    Of a page, the JSON beside it is read: the page itself has only a picture.
    """
    if PAGE.search(beginning_of(Path(path), BEGINNING_BYTES)) is not None:
        page = Path(path)
        places = (page.with_suffix(".json"), page.with_name(f"{page.stem}_torch.json.gz"))
        beside = next((place for place in places if is_timeline_file(str(place))), None)
        if beside is None:
            raise UnreadableInputError(
                f"{path}: the page of a memory timeline has only a picture: give the JSON "
                "(export_memory_timeline with a name that ends in .json or .raw.json.gz)"
            )
        path = str(beside)
    with open_source(path) as source:
        progress = Progress(source.name, source.size_bytes)
        try:
            data = read_content(source, progress)
        finally:
            progress.close()
    if len(data) > _MOST_BYTES:
        raise UnreadableInputError(
            f"{path}: {len(data) / 1e6:,.0f} MB unpacked, larger than any memory timeline of a few "
            "steps; record fewer"
        )
    try:
        document = parse_json(data.tobytes())
    except ValueError as error:
        raise UnreadableInputError(
            f"{path}: the memory timeline is damaged: {error}; export it again"
        ) from error
    try:
        found = _timelines(path, document)
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise UnreadableInputError(
            f"{path}: no memory timeline, or damaged: {error}; export it again"
        ) from error
    if not found or not any(len(one.time_ns) for one in found):
        raise UnreadableInputError(
            f"{path}: the memory timeline is empty: nothing was recorded of its device"
        )
    return [one for one in found if len(one.time_ns)]


def _timelines(path: str, document: Any) -> list[ExportedTimeline]:
    if isinstance(document, dict):
        return [_own(path, device) for device in document["devices"]]
    if not isinstance(document, list):
        raise ValueError("it is no list")
    is_coalesced = len(document) == 2 and (
        not document[0] or not document[1] or isinstance(document[1][0], list)
    )
    return [_coalesced(path, *document) if is_coalesced else _raw(path, document)]


def _own(path: str, device: dict[str, Any]) -> ExportedTimeline:
    time_ns = _whole(device["time_ns"], 1)
    parts = {str(name): _whole(values, 1) for name, values in device["parts"].items()}
    reserved = _whole(device["reserved_bytes"], 1)
    if any(len(one) != len(time_ns) for one in (*parts.values(), reserved)):
        raise ValueError("its columns differ in length")
    return ExportedTimeline(
        path, "a run's memory timeline", str(device["device"]), time_ns, parts, None, reserved
    )


def _coalesced(path: str, times: list[int], rows: list[list[int]]) -> ExportedTimeline:
    time_us, sizes = _whole(times, 1), _whole(rows or [[0] * (len(CATEGORIES) + 1)], 2)
    if rows and (len(sizes) != len(time_us) or sizes.shape[1] != len(CATEGORIES) + 1):
        raise ValueError(f"{sizes.shape[0]} × {sizes.shape[1]} sizes for {len(time_us)} times")
    if (np.abs(time_us) > _LONGEST_TIME_US).any():
        raise ValueError("a time is beyond any clock")
    parts = {name: sizes[:, place + 1] for place, name in enumerate(CATEGORIES)}
    form = "torch's memory timeline"
    return ExportedTimeline(path, form, "", time_us * 1000, parts, None, None)


def _raw(path: str, rows: list[list[int]]) -> ExportedTimeline:
    table = _whole(rows or np.empty((0, 4)), 2)
    if table.shape[1] != 4:
        raise ValueError(f"its rows have {table.shape[1]} numbers, not 4")
    time_ns, action, change, category = table.T
    if len(table) and not (category.min() >= 0 and category.max() < len(CATEGORIES)):
        raise ValueError("a category is none of torch's")
    known = time_ns[time_ns >= 0]
    time_ns = np.where(time_ns < 0, known.min() if len(known) else 0, time_ns)
    order = np.argsort(time_ns, kind="stable")
    parts = {
        name: np.cumsum(np.where(category == place, change, 0)[order])
        for place, name in enumerate(CATEGORIES)
    }
    made = int(np.isin(action, (_THERE_BEFORE, _MADE)).sum())
    form = "torch's raw memory timeline"
    return ExportedTimeline(path, form, "", time_ns[order], parts, made, None)


def _whole(values: Any, dimensions: int) -> Int64Array:
    """Whole numbers, checked; anything else would become floats or texts without a word."""
    found = np.asarray(values)
    if found.ndim != dimensions or (found.size and found.dtype.kind not in "iu"):
        raise ValueError("it has something other than whole numbers")
    return found.astype(np.int64)


def table_of(timeline: ExportedTimeline) -> pl.DataFrame:
    """Columns: time_ns, allocated_bytes, and the bytes of each part that ever has any.

    Of several rows with one time, the last counts.
    """
    last = np.append(timeline.time_ns[1:] != timeline.time_ns[:-1], True)
    parts = {name: values[last] for name, values in timeline.parts.items()}
    total = np.sum(list(parts.values()), axis=0, dtype=np.int64)
    columns = {"time_ns": timeline.time_ns[last], "allocated_bytes": total}
    if timeline.reserved_bytes is not None and timeline.reserved_bytes.any():
        columns["reserved_bytes"] = timeline.reserved_bytes[last]
    columns |= {f"{name}_bytes": values for name, values in parts.items() if values.any()}
    return pl.DataFrame(columns)


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
        reserved_bytes: The most that the allocator had reserved; None: the file does not say.
        replay_mismatches: None: there is nothing to hold a timeline against.
        categories: category, allocated_bytes, allocated_share at the peak; the most first. The
            timeline of a run has phases in place of categories.
        timeline: One row per moment, at most 500: for each interval that with the most held:
            time_ns, allocated_bytes, and the bytes of each category.
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

    Of a file about several devices, by default about that of which most was held.
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
    axis = np.maximum.accumulate(times)
    columns = time_columns(axis, held, held, int(axis[0]), int(axis[-1]) + 1, _MOST_POINTS)
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
        timeline=table[columns.rows[columns.with_events]],
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
