"""Pictures of answers, for the viewer and for pages: plain values for `draw/pictures.js`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.advice.rank.ladder import SHORT_NAMES
from stepscope.analysis.compute import kind_label
from stepscope.analysis.selection.partition import cause_label
from stepscope.report.cells import label, shown
from stepscope.report.document import Figure
from stepscope.report.figures import bars, ladder, memory_curve
from stepscope.report.units import count, duration, flops, percent, plural, size
from stepscope.trace.arrays.time_columns import time_columns
from stepscope.trace.classify import COLLECTIVE_GROUPS

if TYPE_CHECKING:
    from stepscope.analysis.blame.lanes import JobLanes

MOST_POINTS = 400
"""Points of a picture, the most costly first."""
MOST_BARS = 16
MOST_MODULES = 32
_MOSTLY_ONE = 0.8
"""Where one module has so much of the time of a depth, those inside it tell more."""
_MOST_COLUMNS = 500
_LEAST_LINE_NS = 1000
_BEFORE_WINDOW = "allocated before the window"


def pictures_of(question: str, result: Any, origin_ns: int = 0) -> list[Figure]:
    """The pictures of an answer; none where it has nothing to draw.

    Args:
        origin_ns: Moments are relative to this.
    """
    draw = _PICTURES.get(question)
    return [] if draw is None else list(draw(result, origin_ns))


def _ladder(result: Any, _origin_ns: int) -> Iterator[Figure]:
    rows = result.rungs.select("rung", "step_ns", "limit").iter_rows()
    found = ladder(
        [(SHORT_NAMES.get(rung, rung), ns, limit, _limits(limit)) for rung, ns, limit in rows]
    )
    if found:
        yield found


def _limits(limit: str) -> str:
    return "floor" if limit == "floor" else f"{limit} limits it"


def _what_if(result: Any, _origin_ns: int) -> Iterator[Figure]:
    """The step without each cause, and hatched what that saves."""
    found = result.causes.filter(pl.col("saving_ns") > 0).head(MOST_BARS).to_dicts()
    today = {
        "name": "today",
        "to": result.step_ns,
        "is": "whole",
        "text": duration(result.step_ns),
        "words": "",
    }
    rows = [
        {
            "name": f"without {cause_label(one['without'])}",
            "to": one["step_ns"],
            "gone": result.step_ns,
            "text": duration(one["step_ns"]),
            "words": f"saves {percent(one['saving_share'])}",
        }
        for one in found
    ]
    yield from bars([today, *rows] if rows else [])


def _kernels(result: Any, _origin_ns: int) -> Iterator[Figure]:
    yield from kernel_points(result.kernels.head(MOST_POINTS).iter_rows(named=True))


def kernel_points(kernels: Iterable[Mapping[str, Any]]) -> Iterator[Figure]:
    """Each kernel by how often it ran and how long it took.

    Args:
        kernels: Rows of the kernels by name: name, group, count, mean_ns, total_ns, event.
    """
    points = [
        _point(
            (one["count"], one["mean_ns"], one["total_ns"]),
            one["name"],
            _kind(one.get("group")),
            one.get("event"),
            f"{count(one['count'])}×, {duration(one['mean_ns'])} each,"
            f" {duration(one['total_ns'])} in all",
        )
        for one in kernels
        if one["mean_ns"] > 0
    ]
    most = max((one["weight"] for one in points), default=0)
    often = max((one["x"] for one in points), default=1)
    lines = [
        {"at": [[1, total], [often, total / often]], "label": f"{duration(total)} in all"}
        for total in (most, most / 10, most / 100)
        if total >= _LEAST_LINE_NS
    ]
    yield from _scatter(
        title="Kernels by count and duration",
        x=("count", "how often it ran"),
        y=("mean_ns", "mean duration"),
        points=points,
        lines=lines,
        caption="Each point is a kernel, as large as its time in all, which is the same along a"
        " dashed line: what lies up and to the right costs the most.",
    )


def _kind(group: str | None) -> str | None:
    if group in COLLECTIVE_GROUPS:
        return "communication"
    return None if group is None else kind_label(group)


def _roofline(result: Any, _origin_ns: int) -> Iterator[Figure]:
    """Each operator and shape by arithmetic intensity and speed, below what the device can do."""
    is_known = (pl.col("flops_per_byte") > 0) & (pl.col("teraflops_per_s") > 0)
    known = result.operators.filter(is_known & pl.col("device").is_not_null()).head(MOST_POINTS)
    points = []
    for one in known.iter_rows(named=True):
        speed = one["teraflops_per_s"] * 1e12
        share = one["attained_share"]
        of_peak = "" if share is None else f", {percent(share)} of what {one['bound']} allows"
        points.append(
            _point(
                (one["flops_per_byte"], speed, one["busy_ns"]),
                one["name"],
                one["type"],
                None,
                f"{one['type']} {one['dims']}: {flops(speed)}/s{of_peak},"
                f" {duration(one['busy_ns'])} in {plural(one['count'], 'call')}",
            )
        )
    yield from _scatter(
        title="Roofline",
        x=("flops_per_byte", "FLOP per byte"),
        y=("flops_per_s", "speed"),
        points=points,
        lines=list(_ceilings(result.ceilings, [one["x"] for one in points])),
        caption="Each point is an operator with its shapes, as large as its time. The dashed line"
        " is what the device can do at most: on the slope its memory is the limit, on the level its"
        " arithmetic.",
    )


def _ceilings(table: pl.DataFrame, at: list[float]) -> Iterator[dict[str, Any]]:
    """One roof for each type: the slope of the memory up to the level of the arithmetic."""
    if not at:
        return
    low, high = min(at), max(at)
    for type_name, peak, bandwidth in (
        table.drop_nulls()
        .select("type", "peak", "bandwidth")
        .unique()
        .sort("type", "peak", "bandwidth")
        .iter_rows()
    ):
        ridge = peak / bandwidth
        left, right = min(low, ridge / 4), max(high, ridge * 4)
        yield {
            "at": [[left, left * bandwidth], [ridge, peak], [right, peak]],
            "label": f"{type_name}: {flops(peak)}/s, {bandwidth / 1e9:,.0f} GB/s",
        }


def _communication(result: Any, _origin_ns: int) -> Iterator[Figure]:
    is_known = (pl.col("message_bytes") > 0) & (pl.col("bus_bandwidth_gb_per_s") > 0)
    known = result.collectives.filter(is_known).sort("dur_ns", descending=True).head(MOST_POINTS)
    points = []
    for one in known.iter_rows(named=True):
        speed = one["bus_bandwidth_gb_per_s"]
        text = (
            f"{size(one['message_bytes'])} over {one['group_size']} ranks in"
            f" {duration(one['dur_ns'])}: {count(speed)} GB/s"
        )
        place = (one["message_bytes"], speed * 1e9, one["dur_ns"])
        points.append(_point(place, label(one["kind"]), one["kind"], one["event"], text))
    yield from _scatter(
        title="Collectives by size and bandwidth",
        x=("message_bytes", "message"),
        y=("bytes_per_s", "bus bandwidth"),
        points=points,
        lines=[],
        caption="Each point is a collective, as large as its time. Small messages cannot be fast; a"
        " large one that is slow waited for other ranks, or the link is slow.",
    )
    yield from _sent(result.collectives)


def _sent(collectives: pl.DataFrame) -> Iterator[Figure]:
    """Who sent how much to whom, where ranks send to each other one by one."""
    pairs = (
        collectives.drop_nulls(["from_rank", "to_rank", "message_bytes"])
        .group_by("from_rank", "to_rank")
        .agg(pl.col("message_bytes").sum(), pl.len().alias("count"))
        .sort("from_rank", "to_rank")
    )
    if pairs.is_empty():
        return
    ranks = sorted({*pairs["from_rank"], *pairs["to_rank"]})
    yield Figure(
        {
            "is": "matrix",
            "title": "Who sends to whom",
            "rows": [f"rank {rank}" for rank in ranks],
            "columns": [str(rank) for rank in ranks],
            "corner": "from, to rank",
            "cells": [
                [
                    ranks.index(source),
                    ranks.index(target),
                    sent,
                    f"rank {source} to rank {target}: {size(sent)}, {plural(number, 'message')}",
                ]
                for source, target, sent, number in pairs.iter_rows()
            ],
        }
    )


def _memory(result: Any, origin_ns: int) -> Iterator[Figure]:
    """For each device, the fullest first, memory over time and what adds up to its peak."""
    devices = result.devices.sort("kind", "peak_allocated_bytes", descending=True)
    for one in devices.iter_rows(named=True):
        mine = (pl.col("kind") == one["kind"]) & (pl.col("device") == one["device"])
        name = "the host" if one["kind"] == "cpu" else f"GPU {one['device']}"
        if one["peak_allocated_bytes"]:
            peak = (int(one["peak_time_ns"]) - origin_ns, one["peak_allocated_bytes"])
            reserved = one["peak_reserved_bytes"]
            text = f", at most {size(reserved)} reserved" if reserved else ""
            caption = f"The peak of {name}: {size(peak[1])} held{text}."
            yield _curve(result.timeline.filter(mine), caption, peak, origin_ns)
            yield from _to_the_peak(result.at_peak.filter(mine), name)


def _curve(curve: pl.DataFrame, caption: str, peak: tuple[int, int], origin_ns: int) -> Figure:
    """Memory over time, in columns with the most of each."""
    at, allocated = (curve[name].to_numpy() for name in ("time_ns", "allocated_bytes"))
    is_known = not curve["reserved_bytes"].null_count()
    reserved = curve["reserved_bytes"].to_numpy() if is_known else allocated
    found = time_columns(at, allocated, reserved, int(at[0]), int(at[-1]) + 1, _MOST_COLUMNS)
    return memory_curve(
        caption,
        allocated[found.rows].tolist(),
        found.reserved_bytes.tolist() if is_known else None,
        start=found.start - origin_ns,
        step=found.step,
        peak=peak,
    )


def _to_the_peak(held: pl.DataFrame, device: str) -> Iterator[Figure]:
    """What is held at the peak, one on top of the other."""
    rows, at = [], 0
    place = pl.coalesce("frame", "inner_operator", "operator")
    table = (
        held.with_columns(
            place=pl.when(pl.col("operator") == _BEFORE_WINDOW).then("operator").otherwise(place)
        )
        .group_by("place", maintain_order=True)
        .agg(pl.col("live_bytes").sum(), pl.col("allocations").sum())
    )
    first = table.head(MOST_BARS)
    rest = table.slice(MOST_BARS)["live_bytes"].sum()
    parts = [(one["place"], one["live_bytes"]) for one in first.iter_rows(named=True)]
    for name, held_bytes in [*parts, *([("others", rest)] if rest else [])]:
        rows.append(
            {
                "name": name,
                "from": at,
                "to": at + held_bytes,
                "text": size(held_bytes),
                "words": "",
            }
        )
        at += held_bytes
    whole = {"name": f"peak of {device}", "to": at, "is": "whole", "text": size(at), "words": ""}
    if len(rows) > 1:
        yield from bars([*rows, whole], "What the peak is made of")


def _critical_path(result: Any, _origin_ns: int) -> Iterator[Figure]:
    """The causes on the path, and the step that they add up to."""
    steps = max(1, result.partition.steps)
    rows, at = [], 0
    for one in result.causes.filter(pl.col("total_ns") > 0).iter_rows(named=True):
        part = one["total_ns"] / steps
        rows.append(
            {
                "name": cause_label(one["cause"]),
                "from": at,
                "to": at + part,
                "part": one["cause"],
                "text": duration(part),
                "words": percent(one["total_share"]),
            }
        )
        at += part
    yield from bars(rows, "The path of a step, by cause")


def _point(
    place: tuple[float, float, float], name: str, kind: str | None, event: int | None, text: str
) -> dict[str, Any]:
    """A point: where it is, how large, its name, kind, event, and what is said of it."""
    keys = ("x", "y", "weight")
    more = {"name": name, "kind": kind or "other", "event": event, "text": text}
    return {**dict(zip(keys, place, strict=True)), **more}


def _scatter(**drawn: Any) -> Iterator[Figure]:
    """A scatter of `points`, with `title`, axes `x` and `y`, `lines` and a `caption`."""
    if drawn["points"]:
        yield Figure({"is": "scatter", **drawn})


def _arrival_skew(arrivals: pl.DataFrame, sets: pl.DataFrame) -> Iterator[Figure]:
    """When each rank came to the collective with the most waiting, and how long it waited."""
    if sets.is_empty():
        return
    worst = sets.sort("total_wait_ns", descending=True).row(0, named=True)
    mine = arrivals.filter(pl.col("set") == worst["set"]).sort("arrival_ns", descending=True)
    first = mine["arrival_ns"].min()
    if first is None or worst["spread_ns"] <= 0:
        return
    rows = []
    left_out = max(0, len(mine) - MOST_BARS)
    if left_out:
        mine = pl.concat([mine.head(MOST_BARS - 1), mine.tail(1)])
    for one in mine.iter_rows(named=True):
        came = one["arrival_ns"] - first
        rows.append(
            {
                "name": f"rank {one['rank']}",
                "from": came,
                "to": came + one["dur_ns"],
                "gone_from": came,
                "gone": came + one["wait_ns"],
                "part": "exposed communication",
                "text": f"+{duration(came)}" if came else "first",
                "words": f"waits {duration(one['wait_ns'])}" if one["wait_ns"] else "comes last",
                "rank": one["rank"],
                "event": one["event"],
            }
        )
    step = "" if worst["step"] is None else f" of step {worst['step']}"
    size = worst["message_bytes"]
    what = f"{label(worst['kind'])}{step}"
    if size is not None:
        what += f", {shown('message_bytes', size)}"
    rest = (
        f"; {plural(left_out, 'rank')} between the last and the first left out" if left_out else ""
    )
    title = f"The collective with the most waiting: {what}{rest}"
    yield from bars(rows, title)


def rank_pictures(
    arrivals: pl.DataFrame, sets: pl.DataFrame, lanes: JobLanes | None
) -> Iterator[Figure]:
    """When each rank came to the worst collective, and all ranks in the step with most waiting.

    Args:
        arrivals: Columns `analysis.blame.compared.ARRIVALS`.
        sets: Columns `SETS`.
    """
    yield from _arrival_skew(arrivals, sets)
    yield from _rank_lanes(lanes)


def _rank_lanes(found: JobLanes | None) -> Iterator[Figure]:
    """The lanes of all ranks in one step, on one clock; nothing where they cannot be drawn."""
    if found is None:
        return
    title = "All ranks in the step with the most waiting"
    if found.is_schedule:
        title = "The schedule of the stages, in the step with the most waiting"
    step = "" if found.step is None else f": step {found.step}"
    rest = f" {plural(found.left_out, 'more rank')} left out." if found.left_out else ""
    yield Figure(
        {
            "is": "lanes",
            "title": f"{title}{step}",
            "dur_ns": found.dur_ns,
            "step": found.step,
            "lanes": [
                {
                    "title": f"rank {lane.rank}",
                    "rank": lane.rank,
                    "slices": [
                        [start, end - start, what.removeprefix("idle: "), what]
                        for start, end, what in lane.pieces
                    ],
                }
                for lane in found.lanes
            ],
            "caption": "On one clock. Hatched: the rank waits for others. Blank: its GPU is idle,"
            f" it computes on its CPU, or nothing was recorded.{rest}",
        }
    )


def _modules(result: Any, _origin_ns: int) -> Iterator[Figure]:
    """The first modules that lie beside each other, by what their forward and backward take."""
    where = "device" if result.device_ns else "host"
    columns = {name: f"{name}_{where}_total_ns" for name in ("forward", "backward", "recomputed")}
    table = result.table.with_columns(total=pl.sum_horizontal(columns.values()))
    timed = table.filter(pl.col("total") > 0)
    depths = timed.group_by("depth").agg(
        pl.len().alias("number"),
        (pl.col("total").max() > _MOSTLY_ONE * pl.col("total").sum()).alias("is_one"),
    )
    beside = depths.filter(pl.col("number") > 1).sort("is_one", "depth")["depth"].head(1)
    shown = timed.filter(pl.col("depth").is_in(beside.implode())).sort(
        "total", descending=True, maintain_order=True
    )
    rows = []
    for one in shown.head(MOST_MODULES).iter_rows(named=True):
        pieces = [(one[column], phase) for phase, column in columns.items() if one[column]]
        parts = [f"{phase} {duration(ns)}" for ns, phase in pieces]
        rows.append(
            {
                "name": one["name"],
                "to": one["total"],
                "pieces": pieces,
                "text": duration(one["total"]),
                "words": ", ".join(parts) if len(parts) > 1 else "",
            }
        )
    clock = "GPU time" if result.device_ns else "Time of the host"
    phases = {phase for row in rows for _, phase in row["pieces"]}
    yield from bars(
        rows, f"{clock} by module: {', '.join(one for one in columns if one in phases)}"
    )


def _held(result: Any, _origin_ns: int) -> Iterator[Figure]:
    """What each module holds at a moment, where modules are known."""
    from stepscope.memory.questions.composition import NO_NAME  # which pages of traces do without

    named = result.modules.filter(pl.col("module") != NO_NAME)
    rows = [
        {
            "name": one["module"],
            "to": one["allocated_bytes"],
            "text": size(one["allocated_bytes"]),
            "words": f"mostly {label(one['category'])}",
        }
        for one in named.head(MOST_BARS).iter_rows(named=True)
    ]
    if len(rows) > 1:
        yield from bars(rows, "Memory by module")


_PICTURES: Mapping[str, Callable[[Any, int], Iterator[Figure]]] = {
    "ladder": _ladder,
    "what-if": _what_if,
    "kernels": _kernels,
    "flops": _roofline,
    "communication": _communication,
    "memory": _memory,
    "critical-path": _critical_path,
    "stragglers": lambda result, _: rank_pictures(result.arrivals, result.sets, result.lanes),
    "pipeline": lambda result, _: _rank_lanes(result.lanes),
    "modules": _modules,
    "memory-held": _held,
    "memory-peak": _held,
}
"""Question to what draws its answer."""
