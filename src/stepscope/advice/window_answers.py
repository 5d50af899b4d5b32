"""Answers the questions about a window that a page shows: reads its trace, once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import polars as pl

from stepscope.advice.typical_step import typical_step
from stepscope.advice.window_details import (
    MOST_ROWS,
    DetailedAnswer,
    Recording,
    WindowDetails,
)
from stepscope.analysis.contents import describe
from stepscope.analysis.questions import question
from stepscope.analysis.selection.result_tables import tables_in
from stepscope.analysis.selection.rows import Beginning
from stepscope.analysis.selection.scope import Scope
from stepscope.errors import StepscopeError
from stepscope.trace.load import load
from stepscope.trace.model import Trace

TABLES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "kernels": {
        "groups": ("group", "kind", "count", "total_ns", "work_share", "mean_ns"),
        "kernels": (
            "name", "group", "count", "total_ns", "work_share", "mean_ns", "p50_ns", "max_ns",
        ),
    },
    "operators": {
        "table": (
            "name", "group", "count", "kernels", "device_self_ns", "device_total_ns",
            "host_self_ns", "host_total_ns", "backward_device_ns", "recomputed_device_ns",
        )
    },
    "modules": {
        "table": (
            "path", "calls", "forward_device_total_ns", "backward_device_total_ns",
            "recomputed_device_total_ns", "forward_host_total_ns", "backward_host_total_ns",
        )
    },
    "communication": {
        "devices": (
            "device", "collectives", "communication_ns", "overlapped_ns", "exposed_ns",
            "overlap_share",
        ),
        "sizes": (
            "kind", "message_bytes", "dtype", "group", "group_size", "count", "total_ns",
            "median_ns", "max_ns", "exposed_ns", "bus_bandwidth_gb_per_s",
        ),
    },
    "memory": {
        "devices": (
            "kind", "device", "allocations", "frees", "peak_allocated_bytes",
            "peak_reserved_bytes", "capacity_bytes", "peak_share",
        ),
        "at_peak": (
            "operator", "inner_operator", "frame", "device", "allocations", "live_bytes",
            "peak_share",
        ),
    },
}  # fmt: skip
"""Tables of each answer, and their columns, in the order of a page."""


def answer_window(path: Path, asked: Scope, steady: tuple[int, ...]) -> WindowDetails:
    """The details of a window.

    Args:
        path: Its trace.
        asked: The steps, devices and events that the answers are about.
        steady: Its steady steps, of which one is drawn.

    Raises:
        UnreadableInputError: The trace cannot be read.
    """
    trace = load(path)
    found = [_answer(name, trace, asked) for name in TABLES]
    return WindowDetails(
        recording=_recording(trace),
        answers=tuple(one for one in found if isinstance(one, DetailedAnswer)),
        notes=tuple(one for one in found if isinstance(one, str)),
        step=typical_step(trace, steady),
    )


def _answer(name: str, trace: Trace, asked: Scope) -> DetailedAnswer | str:
    """The first rows of the tables of an answer; or why there is none."""
    try:
        result = question(name).ask(trace, asked)
    except StepscopeError as error:
        return f"{name}: {error}"
    found = tables_in(result)
    tables = {
        field: Beginning.of(found[field].select(columns), MOST_ROWS)
        for field, columns in TABLES[name].items()
    }
    return DetailedAnswer(name, tables, result.scope, tuple(result.notes))


def _recording(trace: Trace) -> Recording:
    contents = describe(trace)
    gpus = contents.devices.filter(pl.col("events") > 0)["name"].drop_nulls().unique().sort()
    return Recording(
        path=contents.path,
        producer=contents.producer,
        accelerator=contents.accelerator,
        gpus=tuple(gpus),
        backend=contents.backend,
        header=dict(contents.header),
    )
