"""What memory held at one moment, and one allocation in full, as the page shows them."""

from __future__ import annotations

from typing import Any

import polars as pl

from stepscope.errors import UsageError
from stepscope.memory.program.lines import line_text
from stepscope.memory.questions.composition import composition
from stepscope.memory.view import MemoryView, Moment
from stepscope.viewer.memory.segments import segments_at
from stepscope.viewer.tables import for_page

_TABLES = {
    "lines": "By line",
    "modules": "By module",
    "allocations": "Allocations, the largest first",
    "sizes": "By size",
}
_MOST_ROWS = 200
_MOST_FRAMES = 200


def state_of(view: MemoryView, moment: Moment) -> dict[str, Any]:
    """What was held at a moment: as `stepscope memory PATH held --at …` says, and the segments."""
    found = composition(view, moment)
    return {
        "device": found.device,
        "moment": found.moment,
        "event": found.event,
        "time_ns": None if found.time_ns is None else found.time_ns - view.origin_ns,
        "allocated_bytes": found.allocated_bytes,
        "requested_bytes": found.requested_bytes,
        "reserved_bytes": found.reserved_bytes,
        "categories": found.categories.to_dicts(),
        "tables": [
            {
                "name": name,
                "title": title,
                **for_page(getattr(found, name), view.origin_ns, _MOST_ROWS),
            }
            for name, title in _TABLES.items()
        ],
        "segments": segments_at(view, moment.device, moment.event),
        "notes": list(found.notes),
    }


def allocation_in_full(view: MemoryView, number: int) -> dict[str, Any]:
    """One allocation: what it is, whose, from when to when, and who asked for it.

    Raises:
        UsageError: There is no such allocation.
    """
    if number >= len(view.allocations):
        raise UsageError(f"there are allocations 0 to {len(view.allocations) - 1}")
    row = view.allocations.row(number, named=True)
    origin = view.origin_ns
    times = {
        name: None if row[name] is None else row[name] - origin
        for name in ("start_ns", "free_ns", "end_ns")
    }
    gone = None if row["is_stack_of_free"] else _stack_of_event(view, row["free_event"])
    return {
        **{
            name: row[name]
            for name in (
                "allocation", "device", "requested_bytes", "size_bytes", "stream", "pool",
                "category", "confidence", "source", "name", "step", "phase", "line",
                "start_event", "free_event", "end_event", "is_stack_of_free",
            )
        },
        **times,
        "address": f"{row['address']:#x}",
        "lasted_ns": None
        if row["start_ns"] is None or row["free_ns"] is None
        else row["free_ns"] - row["start_ns"],
        "stack": _frames(view, row["stack"]),
        # A recorder that notes stacks of requests only gives each free that of its request.
        "free_stack": [] if gone == row["stack"] else _frames(view, gone),
    }  # fmt: skip


def _stack_of_event(view: MemoryView, event: int | None) -> int | None:
    if event is None:
        return None
    found = view.snapshot.events.slice(event, 1).select("stack").collect()["stack"]
    return None if found.is_empty() or found[0] is None else int(found[0])


def _frames(view: MemoryView, stack: int | None) -> list[dict[str, Any]]:
    """The frames of a stack, the innermost first."""
    if stack is None:
        return []
    numbers = view.snapshot.stacks["frames"][stack].head(_MOST_FRAMES)
    frames = view.snapshot.frames[numbers.cast(pl.Int64).to_list()].select(
        text=line_text(),
        filename=pl.col("filename").fill_null(""),
        is_python=pl.col("filename").str.ends_with(".py").fill_null(value=False),
    )
    return list(frames.iter_rows(named=True))
