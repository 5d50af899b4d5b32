"""Which traces there are, how far each is, what it is made of; tiles of its slices and counters."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import polars as pl

from stepscope.analysis.host.partition import partition_host
from stepscope.analysis.record.step_strip import StepStrip, strip_of_record, strip_of_window
from stepscope.analysis.record.summary import summarise_steps
from stepscope.analysis.selection.rows import Rows
from stepscope.analysis.timeline import timeline
from stepscope.errors import UsageError
from stepscope.run.step_record import read_steps
from stepscope.trace.model import Trace
from stepscope.trace.problems import counted
from stepscope.trace.schema import DEVICE_STEPS
from stepscope.viewer.encoding import encode_counter, encode_slices
from stepscope.viewer.routes.answers import Asked, Endpoint
from stepscope.viewer.slice_rows import SliceRows
from stepscope.viewer.tiles import slice_tile

MOST_STRIPS = 64


def _traces(asked: Asked) -> dict[str, Any]:
    return {"traces": [opened.status() for opened in asked.library.traces]}


def _open(asked: Asked) -> dict[str, Any]:
    opened = asked.library.find(asked.identifier)
    opened.start()
    return opened.status()


def _reopen(asked: Asked) -> dict[str, Any]:
    asked.library.reopen(asked.identifier)
    return asked.library.find(asked.identifier).status()


def _overview(asked: Asked) -> dict[str, Any]:
    opened, content = asked.library.find(asked.identifier), asked.content
    index, trace = content.index, content.trace
    origin = index.origin_ns
    steps = trace.steps.select("step", "start_ns", "end_ns", "is_empty", "is_complete")
    # Before the trace is whole, asking for more would work it out here.
    is_whole = content.is_whole
    device_steps = trace.device_steps if is_whole else pl.DataFrame(schema=DEVICE_STEPS)
    problems = trace.all_problems if is_whole else trace.problems
    return {
        "id": asked.identifier,
        "title": opened.origin.title,
        "is_whole": is_whole,
        "has_memory": opened.memory is not None,
        "has_gpu_memory": opened.has_gpu_memory,
        "ranks": asked.library.rank_count(asked.identifier),
        "origin_ns": str(origin),
        "end_ns": index.end_ns,
        "events": index.event_count,
        "lanes": [asdict(lane) for lane in index.lanes],
        "colours": index.colours,
        "steps": _relative(steps, origin),
        "device_steps": _relative(
            device_steps.select("device", "step", "start_ns", "end_ns"), origin
        ),
        "notes": [*index.notes, *_problems(problems)],
    }


def _problems(rows: pl.DataFrame) -> list[str]:
    return [counted(row["message"], row["count"]) for row in rows.iter_rows(named=True)]


def _relative(rows: pl.DataFrame, origin: int) -> list[dict[str, Any]]:
    moved = rows.with_columns(pl.col("start_ns", "end_ns") - origin)
    return moved.to_dicts()


def _steps(asked: Asked) -> dict[str, Any]:
    """Every step of the trace's rank, or of each rank of its run (`all`)."""
    opened = asked.library.find(asked.identifier)
    if not asked.number("all", 0, 1, default=0):
        origins = [opened.origin]
    else:
        run = [one.origin for one in asked.library.traces if one.origin.run == opened.origin.run]
        by_rank = {one.rank: one for one in reversed(run) if not one.is_memory}
        origins = [by_rank[rank] for rank in sorted(by_rank)]
    strips = []
    for origin in origins[:MOST_STRIPS]:
        found = None
        if origin.step_record is not None:
            records = read_steps(origin.step_record)[0]
            summary = summarise_steps(records)
            found = summary and strip_of_record(f"rank {origin.rank}", records, summary)
        if found is None and origin is opened.origin:
            found = asked.whole.alone(lambda: _strip_of(asked.whole.trace))
        if found is not None:
            strips.append({"rank": origin.rank, **asdict(found)})
    return {"strips": strips, "left_out": max(0, len(origins) - MOST_STRIPS)}


def _strip_of(trace: Trace) -> StepStrip | None:
    host = partition_host(trace)
    return strip_of_window(
        Rows.of(timeline(trace).steps), None if host is None else Rows.of(host.steps)
    )


def _extras(asked: Asked) -> dict[str, Any]:
    opened = asked.library.find(asked.identifier)
    content = asked.content
    opened.extras_wanted.set()
    if opened.stage == "failed":
        raise UsageError(opened.error)
    if not opened.has_extras:
        return {"ready": False, "is_whole": content.is_whole}
    extras = asked.whole.extras
    return {
        "ready": True,
        "is_whole": True,
        "has_memory": opened.memory is not None,
        "has_gpu_memory": opened.has_gpu_memory,
        "lanes": [asdict(lane) for lane in extras.idle_lanes],
        "counters": [
            {
                "number": number,
                "name": series.name,
                "group": series.group,
                "unit": series.unit,
                "samples": len(series.time_ns),
                "highest": series.highest,
            }
            for number, series in enumerate(extras.counters)
        ],
        "notes": list(extras.notes),
    }


def _names(asked: Asked) -> dict[str, Any]:
    wanted = asked.numbers("ids") or ()
    names = asked.content.index.names
    return {"names": {str(one): _name(names, one) for one in wanted}}


def _name(names: pl.Series, number: int) -> str:
    if number < len(names):
        return str(names[number])
    from stepscope.analysis.host.idle_gaps import IDLE_CAUSES
    from stepscope.analysis.selection.partition import IDLE_LABELS

    cause = number - len(names)
    return IDLE_LABELS[IDLE_CAUSES[cause]] if cause < len(IDLE_CAUSES) else ""


def _slices(asked: Asked) -> bytes:
    rows = _rows(asked, asked.text("of", "events"))
    wanted = asked.numbers("rows") or ()
    if wanted and max(wanted) >= len(rows):
        raise UsageError(f"there are rows 0 to {len(rows) - 1}")
    return encode_slices(slice_tile(rows, *asked.tile(), wanted))


def _rows(asked: Asked, of: str) -> SliceRows:
    if of == "events":
        return asked.content.index.events
    if of == "extra":
        return asked.content.index.extra
    idle = asked.whole.extras.idle_rows if of == "idle" else None
    if idle is None:
        raise UsageError(f"there are no rows of '{of}'")
    return idle


def _counter(asked: Asked) -> bytes:
    series = asked.whole.extras.counters
    if not series:
        raise UsageError("there are no counters")
    from stepscope.viewer.counters import counter_tile

    number = asked.number("number", 0, len(series) - 1)
    return encode_counter(counter_tile(series[number], *asked.tile()))


ENDPOINTS = (
    Endpoint("/api/traces", _traces),
    Endpoint("/api/traces/{id}/open", _open, "POST"),
    Endpoint("/api/traces/{id}/reopen", _reopen, "POST"),
    Endpoint("/api/traces/{id}/overview", _overview),
    Endpoint("/api/traces/{id}/extras", _extras),
    Endpoint("/api/traces/{id}/steps", _steps),
    Endpoint("/api/traces/{id}/names", _names),
    Endpoint("/api/traces/{id}/slices", _slices),
    Endpoint("/api/traces/{id}/counter", _counter),
)
