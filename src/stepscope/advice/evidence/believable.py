"""Whether a recorded window holds enough of the GPU's work for a verdict.

Steps that lack GPU work are left out of means and causes (`host.steady_steps`). If they are half of
the steps or more, the others may be no example either: then there is no verdict on what limits the
step. Nor is there one if no step is left, or if a file without steps lacks as much as makes a step
be left out. And there is none if the recorded ends of much of the work are impossible: such work
counts as long as it can have lasted, which is not known to be right.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from stepscope.advice.evidence.window_view import WindowView, once
from stepscope.analysis.selection.gpu_work import recorded_work
from stepscope.analysis.selection.lost_work import NOTABLE_LOSS, lost_work
from stepscope.run.figures import percent

NOT_UNDERSTOOD = ("device_lanes_unknown", "xla_on_cpu")
"""Problems of traces whose work cannot be told from waiting for it."""
_TOO_MUCH = 0.5  # of the steps
_TOO_MANY_ENDS = 0.1  # of the GPU work


@dataclass(frozen=True)
class Loss:
    """GPU work that a window lacks.

    Attributes:
        text: What is missing; empty if nothing notable is.
        is_too_much: Whether there is no verdict.
        leaves_nothing: Whether no step is left to look for causes in.
        impossible_ends: Pieces of GPU work whose recorded ends are impossible, if these are much.
    """

    text: str
    launches: int
    is_too_much: bool = False
    leaves_nothing: bool = False
    impossible_ends: int = 0


@once
def loss_of(window: WindowView) -> Loss:
    """The GPU work that a window lacks, which its launches say it had."""
    unknown = window.trace.problems.filter(pl.col("problem").is_in(NOT_UNDERSTOOD))
    if len(unknown):
        return Loss(unknown["message"][0], 0, is_too_much=True, leaves_nothing=True)
    ends, work = len(window.trace.overruns), len(recorded_work(window.trace))
    if ends > _TOO_MANY_ENDS * work:
        text = f"the recorded ends of {percent(ends / work)} of the GPU work are impossible"
        return Loss(text, 0, is_too_much=True, impossible_ends=ends)
    lost = lost_work(window.trace)
    asked = window.asked.steps
    steps = lost.steps if asked is None else lost.steps.filter(lost.steps["step"].is_in(asked))
    launches = int(steps["lost"].sum()) if len(steps) else lost.lost
    if not launches:
        return Loss("", 0)
    if lost.lost == lost.launches:
        text = "kernels were launched, but the trace has no GPU work"
        return Loss(text, launches, is_too_much=True, leaves_nothing=True)
    if steps.is_empty():
        text = f"{percent(lost.share)} of the launches have no GPU work in the trace"
        if lost.share < NOTABLE_LOSS:
            return Loss("", launches)
        return Loss(text, launches, is_too_much=True, leaves_nothing=True)
    lacking = steps.filter("lacks_work")
    if lacking.is_empty():
        return Loss("", launches)
    whole = bool((lacking["lost"] == lacking["launches"]).all())
    part = "" if whole else "some of "
    of = "the only step" if len(steps) == 1 else f"{len(lacking)} of {len(steps)} steps"
    text = f"{part}the GPU's work of {of} was not recorded"
    leaves_nothing = set(window.graph.steps) <= set(lacking["step"].to_list())
    is_too_much = leaves_nothing or len(lacking) >= _TOO_MUCH * len(steps)
    return Loss(text, launches, is_too_much, leaves_nothing)
