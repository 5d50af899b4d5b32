"""Reads memory timelines: bytes by category over time, as torch.profiler exports them.

Three forms are known by their content, compressed or not:
    torch's `.json`       [[times in µs], [[0, bytes of each category], …]]
    torch's `.raw.json`   [[time in ns, action, change in bytes, category], …]
    a run's own           {"format": "stepscope-memory-timeline", "devices": […]}

torch numbers the categories in the order of `CATEGORIES`. A change is negative for a release; -1 is
the time of what was there before the recording.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.errors import UnreadableInputError
from stepscope.memory.exported.recognition import BEGINNING_BYTES, PAGE, is_timeline_file
from stepscope.memory.reading.content import read_content
from stepscope.run.side_json import parse_json
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

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ExportedTimeline:
    """A memory timeline.

    Attributes:
        path: The file.
        form: What wrote it, in words.
        device: The device, in words; empty: the file does not say.
        time_ns: Moments in order.
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

    Raises:
        UnreadableInputError: It cannot be read, or is damaged.
    """
    if PAGE.search(beginning_of(Path(path), BEGINNING_BYTES)) is not None:
        beside = Path(path).with_suffix(".json")
        if not is_timeline_file(str(beside)):
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
