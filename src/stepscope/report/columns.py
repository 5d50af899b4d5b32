"""Which columns of a table people see, and how they fit a width.

A table of a trace has up to two dozen columns. People get those that answer the question first;
`--columns` chooses others, and `--columns all` shows them all. Nothing is cut where nobody watches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from stepscope.errors import UsageError
from stepscope.report.cells import IDENTITIES, headings

ALL = ("all",)
"""The value of `--columns` that shows every column."""
GAP = 3
_SHORTEST_TEXT = 12
_SHORTEST_NAME = 24
_LONG_TEXT = 60
_WIDE_TABLE = 120

FIRST: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("timeline", "devices"): (
        "device", "compute_ns", "exposed_comm_ns", "exposed_memcpy_ns", "idle_ns", "total_ns",
    ),
    ("timeline", "steps"): (
        "device", "step", "compute_ns", "exposed_comm_ns", "exposed_memcpy_ns", "idle_ns",
        "total_ns",
    ),
    ("steps", "steps"): (
        "step", "device", "state", "wall_ns", "device_ns", "compute_ns", "exposed_comm_ns",
        "idle_ns",
    ),
    ("steps", "summary"): (
        "device", "steps", "median_wall_ns", "mean_wall_ns", "median_device_ns", "mean_device_ns",
    ),
    ("idle", "longest"): ("device", "step", "start_ns", "dur_ns", "cause", "activity", "op_name"),
    ("idle", "steps"): (
        "device", "step", "idle_ns", "device_wait_ns", "input_ns", "synchronisation_ns",
        "op_dispatch_ns", "cpu_operators_ns", "backward_ns", "not_recorded_ns", "python_ns",
    ),
    ("kernels", "kernels"): ("name", "group", "count", "total_ns", "work_share", "mean_ns"),
    ("kernels", "short"): ("name", "short", "count", "faster_than_launch", "mean_ns", "total_ns"),
    ("kernels", "sequences"): ("operator", "length", "count", "total_ns", "mean_kernel_ns"),
    ("kernels", "tensor_cores"): ("operator", "type", "uses", "why", "count", "total_ns"),
    ("fusion", "patterns"): (
        "pattern", "occurrences", "kernels", "total_ns", "work_share", "fused_ns", "saved_bytes",
        "saving_ns",
    ),
    ("compute", "products"): ("operator", "shapes", "type", "total_ns", "bound", "attained_share"),
    ("launches", "blocking"): ("call", "operator", "count", "total_ns", "waited_ns"),
    ("launches", "stretches"): ("device", "step", "start_ns", "dur_ns", "idle_ns", "operator"),
    ("launches", "delays"): ("call", "count", "mean_delay_ns", "p99_delay_ns", "total_call_ns"),
    ("launches", "queues"): (
        "device", "stream", "launches", "mean_length", "max_length", "empty_share",
    ),
    ("input", "sources"): ("name", "count", "total_ns", "mean_ns", "max_ns"),
    ("memory", "devices"): (
        "kind", "device", "allocations", "peak_allocated_bytes", "peak_step",
        "peak_reserved_bytes", "peak_share",
    ),
    ("memory", "at_peak"): ("device", "operator", "frame", "live_bytes", "peak_share"),
    ("memory", "steps"): (
        "kind", "device", "step", "start_bytes", "end_bytes", "peak_allocated_bytes",
        "peak_reserved_bytes",
    ),
    ("operators", "table"): (
        "name", "count", "host_total_ns", "host_self_ns", "kernels", "device_self_ns",
    ),
    ("operators-by-shape", "table"): (
        "name", "dims", "count", "host_self_ns", "kernels", "device_self_ns",
    ),
    ("modules", "table"): (
        "name", "calls", "forward_host_total_ns", "forward_device_total_ns",
        "backward_device_total_ns", "recomputed_device_total_ns", "flops", "teraflops_per_s",
    ),
    ("call-tree", "nodes"): (
        "name", "depth", "count", "host_total_ns", "host_self_ns", "device_total_ns",
    ),
    ("python-functions", "functions"): ("function", "place", "self_ns", "self_share", "total_ns"),
    ("communication", "sizes"): (
        "kind", "message_bytes", "dtype", "group_size", "count", "total_ns", "exposed_ns",
        "bus_bandwidth_gb_per_s",
    ),
    ("communication", "collectives"): (
        "step", "device", "start_ns", "kind", "message_bytes", "dur_ns", "exposed_ns",
        "bus_bandwidth_gb_per_s",
    ),
    ("abnormal-collectives", "table"): (
        "step", "device", "kind", "message_bytes", "dur_ns", "expected_ns", "times", "cause",
    ),
    ("memory-oom", "remedies"): ("remedy", "is_enough", "frees_bytes", "needs_bytes", "cost"),
    ("memory-settings", "alternatives"): (
        "settings", "peak_reserved_bytes", "saved_bytes", "unused_share", "retries",
        "is_out_of_memory",
    ),
    ("memory-shard", "targets"): (
        "ranks", "divided", "peak_allocated_bytes", "peak_reserved_bytes", "saved_bytes",
        "buffer_bytes", "fits",
    ),
    ("ladder", "rungs"): (
        "rung", "step_ns", "step_share", "limit", "limit_share", "fixed",
    ),
    ("flops", "operators"): (
        "name", "dims", "count", "flops", "busy_ns", "teraflops_per_s", "bound", "attained_share",
    ),
}  # fmt: skip
"""Question and table to the columns that people see first."""


@dataclass(frozen=True)
class Fitted:
    """A table as it fits.

    Attributes:
        blocks: Columns of the blocks below each other; one, unless more columns were asked for
            than fit.
        labels: Column to its heading.
        widths: Column to its longest cell.
    """

    blocks: tuple[tuple[str, ...], ...]
    labels: Mapping[str, str]
    widths: Mapping[str, int]
    left_out: int


def first_columns(frame: pl.DataFrame, question: str, table: str) -> tuple[str, ...]:
    """The columns that people see first: all of them if nothing says otherwise."""
    known = [name for name in FIRST.get((question, table), ()) if name in frame.columns]
    return tuple(known) or tuple(frame.columns)


def asked_columns(frame: pl.DataFrame, asked: Sequence[str]) -> tuple[str, ...]:
    """The columns of a table that `--columns` names, in its order; empty if it has none of them.

    A column goes by its name in JSON and CSV, or by its heading.
    """
    if tuple(asked) == ALL:
        return tuple(frame.columns)
    by_heading = {
        text: name
        for is_short in (True, False)
        for name, text in headings(frame.columns, is_short=is_short).items()
    }
    by_name = by_heading | {name: name for name in frame.columns}
    return tuple(dict.fromkeys(by_name[word] for word in asked if word in by_name))


def check_columns(tables: Mapping[str, pl.DataFrame], asked: Sequence[str] | None) -> None:
    """Check that each column asked for is in one of the tables."""
    if asked is None or tuple(asked) == ALL:
        return
    for word in asked:
        if not any(asked_columns(frame, (word,)) for frame in tables.values()):
            names = dict.fromkeys(name for frame in tables.values() for name in frame.columns)
            raise UsageError(f"no column '{word}'; there are {', '.join(names)}")


def selected(frame: pl.DataFrame, asked: Sequence[str] | None) -> pl.DataFrame:
    """The table with the columns asked for, or with all of them."""
    return frame if asked is None else frame.select(asked_columns(frame, asked))


def fit(
    frame: pl.DataFrame, cells: Mapping[str, Sequence[str]], width: int, *, may_drop: bool
) -> Fitted:
    """Fit the columns into a width.

    What is too wide gets shorter headings, then shorter text; then the last columns are dropped,
    or the table is broken.

    Args:
        may_drop: Drop columns that do not fit. Otherwise they follow below, in further blocks.
    """
    labels, natural = _natural(frame, cells, is_short=False)
    if _total(natural, list(cells)) > width:
        labels, natural = _natural(frame, cells, is_short=True)
    keys = [name for name in cells if name in IDENTITIES][:2] or list(cells)[:1]
    keys = keys if list(cells)[: len(keys)] == keys else list(cells)[:1]
    shortest = {
        name: wide
        if frame[name].dtype.is_numeric() or frame[name].dtype == pl.Boolean
        else min(wide, max(len(labels[name]), _SHORTEST_NAME if name in keys else _SHORTEST_TEXT))
        for name, wide in natural.items()
    }
    blocks = [list(keys)]
    for name in cells:
        if name in keys:
            continue
        if _total(shortest, [*blocks[-1], name]) > width and len(blocks[-1]) > len(keys):
            if may_drop:
                break
            blocks.append(list(keys))
        blocks[-1].append(name)
    shown = dict.fromkeys(name for block in blocks for name in block)
    widths = dict(natural)
    for block in blocks:
        _shrink(widths, shortest, block, width)
    return Fitted(tuple(map(tuple, blocks)), labels, widths, len(cells) - len(shown))


def _natural(
    frame: pl.DataFrame, cells: Mapping[str, Sequence[str]], *, is_short: bool
) -> tuple[dict[str, str], dict[str, int]]:
    """The headings, and how wide each column is with nothing shortened but them."""
    labels = headings(frame.columns, is_short=is_short)
    return labels, {
        name: max(len(labels[name]), *(len(text) for text in column), 0)
        for name, column in cells.items()
    }


def to_trail(names: Sequence[str], widths: Mapping[str, int]) -> str | None:
    """The column that goes behind the others where nothing is cut; None if all may stay.

    A kernel's name can have hundreds of characters. In front, it would move all numbers out of
    sight, and every line would be as long as the longest name.
    """
    widest = max(names, key=lambda name: widths[name])
    if _total(widths, names) <= _WIDE_TABLE or widths[widest] <= _LONG_TEXT:
        return None
    return widest if len(names) > 1 else None


def _total(widths: Mapping[str, int], names: Sequence[str]) -> int:
    return sum(widths[name] for name in names) + GAP * (len(names) - 1)


def _shrink(
    widths: dict[str, int], shortest: Mapping[str, int], names: Sequence[str], width: int
) -> None:
    """Take from the widest text until the columns fit, or nothing more can be taken."""
    while (excess := _total(widths, names) - width) > 0:
        able = [name for name in names if widths[name] > shortest[name]]
        if not able:
            return
        widest = max(able, key=lambda name: widths[name])
        others = [widths[name] for name in able if name != widest]
        floor = max(shortest[widest], min(max(others, default=0), widths[widest] - 1))
        widths[widest] = max(floor, widths[widest] - excess)
