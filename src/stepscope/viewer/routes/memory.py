"""The memory of a trace or a snapshot: over time, at one moment, and each allocation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.errors import UsageError
from stepscope.viewer.routes.answers import Asked, Endpoint

if TYPE_CHECKING:
    from stepscope.viewer.background import Background
    from stepscope.viewer.memory.history import DeviceHistory, MemoryContent

_MOST_STEPS = 2000
_DEVICES = (-1, 1 << 20)


def _opening(asked: Asked) -> Background[MemoryContent]:
    opening = asked.library.find(asked.identifier).memory
    if opening is None:
        raise UsageError("there is no memory snapshot of this trace, and it has no memory events")
    return opening


def _history(asked: Asked) -> DeviceHistory:
    device = asked.number("device", *_DEVICES, default=_DEVICES[1])
    return _opening(asked).content.history(None if device == _DEVICES[1] else device)


def _open(asked: Asked) -> dict[str, Any]:
    opening = _opening(asked)
    opening.start()
    return opening.status()


def _about(asked: Asked) -> dict[str, Any]:
    """What the page draws around the columns: devices, axis, steps, the peak, failed requests."""
    from stepscope.memory.categories.kinds import STACKED
    from stepscope.memory.questions.composition import composition
    from stepscope.memory.questions.moments import moment_of
    from stepscope.memory.questions.over_time import MOST_LINES

    opening = _opening(asked)
    if opening.stage != "ready":
        return {"ready": False, **opening.status()}
    history = _history(asked)
    view, device, origin = history.view, history.device, history.origin_ns
    with opening.content.asking:
        peak = view.peak(device)
        steps = view.categories.ranges.steps.filter(pl.col("device") == device).head(_MOST_STEPS)
        failed = view.out_of_memory(device).select(
            "event", pl.col("time_ns") - origin, "size_bytes"
        )
        held = composition(view, moment_of(view, device, "peak"))
        return {
            "ready": True,
            "path": view.snapshot.path,
            "devices": list(view.devices),
            "device": device,
            "categories": list(STACKED),
            "is_mostly_unknown": held.is_mostly_unknown,
            "lines": held.lines["line"].head(MOST_LINES).to_list(),
            "has_times": history.has_times,
            "events": len(history.event) - 1,
            "first_event": int(history.event[min(1, len(history.event) - 1)]),
            "first_ns": int(history.time_ns[0]) if history.has_times else None,
            "last_ns": int(history.time_ns[-1]) if history.has_times else None,
            "peak": {
                "event": peak.event,
                "row": history.row_of(peak.event),
                "time_ns": None if peak.time_ns is None else peak.time_ns - origin,
                "allocated_bytes": view.peak_bytes(device),
                "reserved_bytes": int(history.reserved_bytes.max()),
            },
            "steps": [
                {**row, "row": history.row_at(row["start_ns"]) if history.has_times else None}
                for row in steps.select("step", pl.col("start_ns", "end_ns") - origin).to_dicts()
            ],
            "failed": [
                {**row, "row": history.row_of(row["event"])}
                for row in failed.head(_MOST_STEPS).to_dicts()
            ],
            "notes": list(view.notes(device)),
        }


def _columns(asked: Asked) -> bytes:
    from stepscope.viewer.memory.history import MOST_COLUMNS, encode_columns

    history = _history(asked)
    by_event = asked.text("axis", "time") == "events"
    start, end = (asked.number(name, -(2**53), 2**53) for name in ("start", "end"))
    number = asked.number("columns", 1, MOST_COLUMNS)
    with _opening(asked).content.asking:
        found = history.columns(by_event, start, end, number)
        drawn = history.view.allocations[found.allocation]
        said = pl.coalesce(pl.col("name").cast(pl.String), pl.col("line"))
        words = drawn.select(text=said)["text"]
    texts = words.unique(maintain_order=True)
    places = {text: place for place, text in enumerate(texts)}
    about = {"texts": texts.to_list(), "text": [places[word] for word in words]}
    return encode_columns(found, about)


def _state(asked: Asked) -> dict[str, Any]:
    """What was held after an event, or at a moment in words such as "peak" or "step 3"."""
    from stepscope.memory.questions.moments import moment_of
    from stepscope.viewer.memory.moments import state_of

    history = _history(asked)
    view, device = history.view, history.device
    with _opening(asked).content.asking:
        text = asked.text("at", "peak", 60)
        found = state_of(view, moment_of(view, device, text))
        return {**found, "row": history.row_of(found["event"])}


def _allocation(asked: Asked) -> dict[str, Any]:
    from stepscope.viewer.memory.moments import allocation_in_full

    content = _opening(asked).content
    number = asked.number("number", 0, 2**53)
    with content.asking:
        return allocation_in_full(content.view, number)


ENDPOINTS = (
    Endpoint("/api/traces/{id}/memory/open", _open, "POST"),
    Endpoint("/api/traces/{id}/memory", _about),
    Endpoint("/api/traces/{id}/memory/columns", _columns),
    Endpoint("/api/traces/{id}/memory/state", _state),
    Endpoint("/api/traces/{id}/memory/allocation", _allocation),
)
