"""Pictures of pages, as plain values that `page/static/report.js` draws."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from stepscope.report import units
from stepscope.report.document import Figure

if TYPE_CHECKING:
    from stepscope.advice.job.rank_steps import RankSteps
    from stepscope.advice.rank.window_details import TypicalStep
    from stepscope.analysis.record.step_strip import StepStrip


def numbers(pairs: Sequence[tuple[str, str]]) -> Figure | None:
    """The few numbers that matter most, large: label and text."""
    return Figure({"is": "numbers", "numbers": [list(pair) for pair in pairs]}) if pairs else None


def strips(found: Sequence[StepStrip]) -> Figure | None:
    """Steps in order, one strip below the other on one scale; None without steps."""
    drawn = [asdict(one) for one in found if one.first]
    return Figure({"is": "strips", "strips": drawn}) if drawn else None


def mini_timeline(step: TypicalStep) -> Figure:
    """One step as lanes of slices: static, so that it prints as it is."""
    drawn = {
        "is": "mini_timeline",
        "dur_ns": step.dur_ns,
        "lanes": [
            {
                "title": lane.title,
                "slices": [[one.start_ns, one.dur_ns, one.name, one.what] for one in lane.slices],
                "rest": list(lane.rest),
                "rest_what": lane.rest_what,
                "others": lane.others,
            }
            for lane in step.lanes
        ],
    }
    return Figure(drawn)


def memory_curve(
    caption: str,
    allocated_bytes: Sequence[int],
    reserved_bytes: Sequence[int] | None,
    *,
    start: int,
    step: int,
    peak: tuple[int, int],
    **more: Any,
) -> Figure:
    """Memory in columns of equal width, from `start` on, each `step` wide.

    Args:
        caption: What a reader must see in it.
        allocated_bytes: What each column holds.
        reserved_bytes: What is reserved in each; None: not known.
        start: Where the first column begins.
        peak: Where the peak is, and its bytes.
        more: What a snapshot has beside these: bands, lines, steps, failed, is_by_event.
    """
    bands = [{"name": "allocated", "bytes": list(allocated_bytes)}]
    common = {"is_by_event": False, "lines": 0, "bands": bands, "steps": [], "failed": []}
    return Figure(
        {
            "is": "memory",
            "caption": caption,
            "start": start,
            "step": step,
            "allocated": list(allocated_bytes),
            "reserved": None if reserved_bytes is None else list(reserved_bytes),
            "peak": list(peak),
            **common,
            **more,
        }
    )


Bar = Mapping[str, Any]
"""One bar.

`name`, `from` (0 by default), `to`, `text` (its amount), `words` (a remark), `gone` (up to where
it is hatched: taken away, or waited), and its colour: of a `limit`, of a `part`, of `pieces`
(amount and part of each, from the left) or as it `is` ("whole", "grew", "shrank"). With `event` and
`rank` it leads there.
"""


def bars(rows: Sequence[Bar], title: str = "") -> Iterator[Figure]:
    """Bars below each other on one scale: a ladder, a waterfall, arrivals; nothing without rows."""
    if rows:
        yield Figure({"is": "bars", "title": title, "rows": list(rows)})


def ladder(rungs: Sequence[tuple[str, int, str, str]]) -> Figure | None:
    """The step after each fix: its name, the step, what limits it then, and a sentence on that."""
    rows: list[Bar] = []
    before = 0
    for name, step_ns, limit, words in rungs:
        gone = {"gone": before} if before > step_ns else {}
        text = units.duration(step_ns)
        bar = {"name": name, "to": step_ns, "limit": limit, "text": text, "words": words}
        rows.append({**bar, **gone})
        before = step_ns
    return next(bars(rows), None)


def waterfall(parts: Sequence[tuple[str, int, int]]) -> Figure | None:
    """From the total before to that after by what changed, the greatest change first.

    Args:
        parts: Name, and nanoseconds before and after: each side adds up to its total.
    """
    before, after = sum(part[1] for part in parts), sum(part[2] for part in parts)
    rows: list[Bar] = [_total("before", before)]
    at = before
    for name, old, new in sorted(parts, key=lambda part: -abs(part[2] - part[1])):
        if new != old:
            grew = "grew" if new > old else "shrank"
            text = f"{'+' if new > old else '−'}{units.duration(abs(new - old))}"
            rows.append({"name": name, "from": at, "to": at + new - old, "is": grew, "text": text})
            at += new - old
    return next(bars([*rows, _total("after", after)]), None)


def _total(name: str, ns: int) -> Bar:
    return {"name": name, "to": ns, "is": "whole", "text": units.duration(ns)}


def rank_steps(found: RankSteps) -> Figure:
    """Every rank over its steps."""
    drawn = {
        "is": "rank_steps",
        "ranks": list(found.ranks),
        "steps": list(found.steps),
        "own_ns": [list(row) for row in found.own_ns],
    }
    return Figure(drawn)
