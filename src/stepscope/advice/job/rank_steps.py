"""Ranks by steps: what each rank took by itself, from the summaries of ranks.

As in `fleet.rank_map`, it is a step less its exposed communication: on a GPU that of the device
steps, summed over the rank's GPUs, else of the main thread's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.advice.rank.summary import RankSummary
from stepscope.analysis.record.step_strip import StepStrip, strip_of_record, strip_of_window

if TYPE_CHECKING:
    from stepscope.advice.diagnosis import Diagnosis
    from stepscope.analysis.blame.lanes import JobLanes

MOST_RANKS = 32
MOST_STEPS = 60
MOST_STRIPS = 8


@dataclass(frozen=True)
class RankSteps:
    """Part of a map of ranks and steps.

    Attributes:
        ranks: The ranks, the one with the most of its own time first.
        own_ns: By rank, then by step; None where a rank has no such step.
        left_out_ranks: Ranks with less of their own time.
        left_out_steps: Earlier steps.
    """

    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    own_ns: tuple[tuple[int | None, ...], ...]
    left_out_ranks: int
    left_out_steps: int


def rank_steps(ranks: Sequence[RankSummary]) -> RankSteps | None:
    """The map of the ranks that have a window; None for fewer than two, or without steps."""
    own = {rank.rank: found for rank in ranks if (found := _own_ns(rank))}
    if len(own) < 2:
        return None
    steps = sorted({step for found in own.values() for step in found})
    shown = steps[-MOST_STEPS:]
    order = sorted(own, key=lambda rank: (-float(np.mean(list(own[rank].values()))), rank))
    kept = order[:MOST_RANKS]
    return RankSteps(
        tuple(kept),
        tuple(shown),
        tuple(tuple(own[rank].get(step) for step in shown) for rank in kept),
        len(order) - len(kept),
        len(steps) - len(shown),
    )


def rank_strips(diagnosis: Diagnosis) -> tuple[StepStrip, ...]:
    """The steps of the rank shown, then of others: of the step record, else of the window."""
    recorded = {rank.rank: rank for rank in diagnosis.run.ranks}
    found = []
    for summary in sorted(diagnosis.ranks, key=lambda one: one is not diagnosis.shown):
        name = f"rank {summary.rank}"
        strip = None
        if summary.steps is not None:
            records = recorded[summary.rank].steps
            strip = strip_of_record(f"step record of {name}", records, summary.steps)
        title = f"{name}, the recorded window" if len(diagnosis.ranks) > 1 else ""
        host = None if summary.host is None else summary.host.steps
        strip = strip or strip_of_window(summary.device_steps, host, title)
        if strip is not None:
            found.append(strip)
        if len(found) == MOST_STRIPS:
            break
    return tuple(found)


def rank_lanes(diagnosis: Diagnosis) -> JobLanes | None:
    """All ranks in the step with the most waiting; None where they cannot be drawn on one clock."""
    if diagnosis.windows is None:
        return None
    compared_ranks = (one.compared for one in diagnosis.ranks)
    ranks = [(one.arrivals, one.pieces) for one in compared_ranks if one.arrivals is not None]
    return diagnosis.windows.lanes(ranks, diagnosis.skew)


def _own_ns(rank: RankSummary) -> dict[int, int]:
    if rank.device_steps is not None:
        rows, whole, others = rank.device_steps, "total_ns", "exposed_comm_ns"
    elif rank.host is not None:
        rows, whole, others = rank.host.steps, "wall_ns", "communication_ns"
    else:
        return {}
    found: dict[int, int] = {}
    for step, lasting, shared in zip(rows["step"], rows[whole], rows[others], strict=True):
        found[step] = found.get(step, 0) + lasting - shared
    return found
