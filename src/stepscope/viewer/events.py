"""One event in full: what it is, what contains it, what it is linked to."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import polars as pl

from stepscope.analysis.compute import kind_label
from stepscope.errors import UsageError
from stepscope.run.figures import duration, percent, plural, sentence
from stepscope.trace.model import Trace
from stepscope.viewer.index import TraceIndex

MOST_LINKS = 200
"""Links of one kind that are listed; an operator may have launched thousands of kernels."""


def links_of(trace: Trace) -> pl.DataFrame:
    """Who launched what, and whose gradient is computed where.

    Columns: `event`, of GPU work the call that launched it (`launch`) and its innermost operator
    (`op`), and of backward operators their `forward` operators.
    """
    is_work = pl.col("kind") != "none"
    return (
        trace.derived.filter(is_work | pl.col("forward").is_not_null())
        .select("event", pl.when(is_work).then(pl.col("launch", "op")), "forward")
        .collect()
    )


def _ends(links: pl.DataFrame, end: str, other: str, event: int) -> list[int]:
    """One end of each link whose other end is an event."""
    found: list[int] = links.filter(pl.col(other) == event)[end].drop_nulls().sort().to_list()
    return found


_TITLES = {
    ("launch", "event"): "launched by",
    ("op", "event"): "operator",
    ("event", "launch"): "launched",
    ("event", "op"): "GPU work of this operator",
    ("event", "forward"): "forward of",
    ("forward", "event"): "backward of",
}
"""What an event is to the other end of a link, by the columns of that end and its own."""


def stack_of(index: TraceIndex, event: int) -> list[int]:
    """The events of the same lane that contain an event, the outermost first."""
    position = index.position(event)
    if position is None:
        return []
    rows = index.events
    row = index.row_at(position)
    lane = index.lane_of_row(row)
    start, end = int(rows.start_ns[position]), int(rows.end_ns[position])
    found = []
    for above in range(lane.first_row if lane else row, row):
        low, high = int(rows.offsets[above]), int(rows.offsets[above + 1])
        at = low + int(np.searchsorted(rows.start_ns[low:high], start, side="right")) - 1
        if at >= low and rows.end_ns[at] >= end and rows.end_ns[at] > start:
            found.append(int(rows.event[at]))
    return found


def brief(index: TraceIndex, event: int) -> dict[str, Any]:
    """What a list of events says of one: its name and place."""
    position = index.position(event)
    if position is None:
        return {"event": event, "name": f"event {event}", "drawn": False}
    rows = index.events
    row = index.row_at(position)
    lane = index.lane_of_row(row)
    return {
        "event": event,
        "name": index.names[int(rows.name[position])],
        "drawn": True,
        "start_ns": int(rows.start_ns[position]),
        "dur_ns": int(rows.end_ns[position] - rows.start_ns[position]),
        "row": row,
        "lane": lane.key if lane else None,
        "lane_title": lane.title if lane else None,
        "colour": int(rows.colour[position]),
    }


_LINE = re.compile(r"(?:.*/)?(?P<file>[^/]+\.py)\((?P<line>\d+)\): (?P<function>.+)")
_MODULE = "nn.Module: "
_LIBRARIES = re.compile(r"(torch|contextlib|functools|threading)[/.(]|<|.*(?:site|dist)-packages/")


def _place(names: list[str]) -> str:
    """Module and line of the user's code, of the names around an event, the innermost first."""
    module = next((one.removeprefix(_MODULE) for one in names if one.startswith(_MODULE)), "")
    lines = (_LINE.match(one) for one in names if not _LIBRARIES.match(one))
    line = next(filter(None, lines), None)
    where = "" if line is None else f"{line['file']}:{line['line']} ({line['function']})"
    return f"in {module}{', ' if where else ''}{where}" if module else where and f"at {where}"


def _sentence(
    index: TraceIndex,
    links: pl.DataFrame,
    event: int,
    ends: dict[tuple[str, str], list[int]],
    attained: dict[int, tuple[float, str]],
) -> str:
    """Where an event comes from and what it reaches, in one sentence; empty if nothing is known."""

    def names_around(one: int) -> list[str]:
        return [brief(index, above)["name"] for above in reversed(stack_of(index, one))]

    launches, operators = ends["launch", "event"], ends["op", "event"]
    work = ends["event", "op"]
    if launches:
        here, launch = brief(index, event), brief(index, launches[0])
        ago = ""
        if here["drawn"] and launch["drawn"] and here["start_ns"] >= launch["start_ns"]:
            ago = f" {duration(here['start_ns'] - launch['start_ns'])} earlier"
        by = f" by {brief(index, operators[0])['name']}" if operators else ""
        text = f"launched{ago}{by}"
        place = _place(names_around(launches[0]))
    else:
        text = ""
        if work:
            total = sum(brief(index, one).get("dur_ns", 0) for one in work[:MOST_LINKS])
            pieces = plural(len(work), "piece")
            lasting = f" of {duration(total)}" if len(work) <= MOST_LINKS else ""
            text = f"launched {pieces} of GPU work{lasting}"
        place = _place(names_around(event))
    if not place:
        for operator in operators or [event]:
            forward = _ends(links, "forward", "event", operator)
            if forward:
                place = f"backward of {brief(index, forward[0])['name']}"
                place += f" {_place(names_around(forward[0]))}"
    share, limit = attained.get(event, (None, ""))
    reached = "" if share is None else f"calls of this shape reach {percent(share)} of the {limit}"
    origin = " ".join(filter(None, (text, place.strip())))
    found = "; ".join(filter(None, (origin, reached)))
    return sentence(found)


def attained_shares(trace: Trace) -> dict[int, tuple[float, str]]:
    """What matrix products reach of the peak or of the bandwidth that bounds them, by GPU work."""
    from stepscope.analysis.flops import analyse_flops

    report = analyse_flops(trace)
    keys = ["name", "dims", "type"]
    limits = {"compute": "peak", "memory": "memory bandwidth"}
    rows = report.work.join(
        report.operators.group_by(keys).agg(pl.col("attained_share", "bound").first()),
        on=keys,
        nulls_equal=True,
    ).drop_nulls(["attained_share", "bound"])
    return {
        event: (share, limits[bound])
        for event, share, bound in rows.select("event", "attained_share", "bound").iter_rows()
    }


def event_in_full(
    trace: Trace,
    index: TraceIndex,
    links: pl.DataFrame,
    event: int,
    attained: dict[int, tuple[float, str]] | None = None,
) -> dict[str, Any]:
    """Everything that is known of one event.

    Args:
        index: The slices of the trace.
        links: As `links_of` gives them.
        attained: What GPU work reaches of a limit, and which limit, as far as it is worked out.

    Raises:
        UsageError: There is no such event.
    """
    found = (
        trace.events.filter(pl.col("event") == event)
        .join(trace.names.select("name_id", "name", "raw_category"), on="name_id", how="left")
        .collect()
    )
    if not len(found):
        raise UsageError(f"there is no event {event}")
    row = found.row(0, named=True)
    derived = trace.derived.filter(pl.col("event") == event).collect().row(0, named=True)
    ends = {columns: _ends(links, *columns, event) for columns in _TITLES}
    linked = ((title, ends[columns]) for columns, title in _TITLES.items())
    return {
        **brief(index, event),
        "name": row["name"],
        "category": row["category"],
        "raw_category": row["raw_category"],
        "kind": derived["kind"],
        "group": derived["group"] and kind_label(derived["group"]),
        "step": derived["step"],
        "start_ns": row["start_ns"] - index.origin_ns,
        "dur_ns": row["dur_ns"],
        "self_ns": derived["self_ns"],
        "device": row["device"],
        "stream": row["stream"],
        "bytes": row["bytes"],
        "correlation": row["correlation"],
        "external_id": row["external_id"],
        "arguments": trace.arguments(event),
        "said": _sentence(index, links, event, ends, attained or {}),
        "stack": [
            {**around, "is_library": bool(_LIBRARIES.match(around["name"]))}
            for around in (brief(index, one) for one in stack_of(index, event))
        ],
        "links": [
            {
                "title": title,
                "total": len(events),
                "events": [brief(index, one) for one in events[:MOST_LINKS]],
            }
            for title, events in linked
            if events
        ],
    }
