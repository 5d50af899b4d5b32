"""Pictures of pages, as plain values that `page/static/report.js` draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from stepscope.report.document import Figure

if TYPE_CHECKING:
    from stepscope.advice.job.rank_steps import RankSteps
    from stepscope.advice.rank.drawn_step import TypicalStep
    from stepscope.analysis.record.step_strip import StepStrip
    from stepscope.memory.questions.over_time import OverTime


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


def memory(found: OverTime, caption: str) -> Figure:
    """Memory over time.

    Args:
        found: The memory.
        caption: What a reader must see in it.
    """
    drawn = {
        "is": "memory",
        "caption": caption,
        "is_by_event": found.is_by_event,
        "start": found.start,
        "step": found.step,
        "allocated": list(found.allocated_bytes),
        "reserved": None if found.reserved_bytes is None else list(found.reserved_bytes),
        "bands": [{"name": name, "bytes": list(values)} for name, values in found.bands],
        "steps": [list(one) for one in found.steps],
        "peak": [found.peak.at, found.peak.allocated_bytes],
        "failed": [[one.at, one.allocated_bytes] for one in found.failed],
    }
    return Figure(drawn)


def waterfall(titles: tuple[str, str], parts: Sequence[tuple[str, int, int]]) -> Figure:
    """From one total to another.

    Args:
        titles: What the totals are.
        parts: Name, and nanoseconds before and after: each side adds up to its total.
    """
    named = [{"name": name, "a_ns": before, "b_ns": after} for name, before, after in parts]
    return Figure({"is": "waterfall", "titles": list(titles), "parts": named})


def ladder(rungs: Sequence[tuple[str, int, str, str]]) -> Figure | None:
    """The step after each fix: its name, the step, what limits it then, and that in words."""
    if not rungs:
        return None
    keys = ("name", "step_ns", "limit", "words")
    drawn = [dict(zip(keys, one, strict=True)) for one in rungs]
    return Figure({"is": "ladder", "rungs": drawn})


def rank_steps(found: RankSteps) -> Figure:
    """Every rank over its steps."""
    drawn = {
        "is": "rank_steps",
        "ranks": list(found.ranks),
        "steps": list(found.steps),
        "own_ns": [list(row) for row in found.own_ns],
    }
    return Figure(drawn)
