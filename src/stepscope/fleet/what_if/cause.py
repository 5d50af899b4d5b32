"""Why a job is slower than it would be if all were alike: the causes, each undone on its own.

Definitions
    Computation: the forward and backward operations. A worker's usual duration is the mean over its
    operations of one kind in all steps; a stage's is the median of its workers' (the lower of two,
    so that a slow worker does not count as a slow stage), the overall one the mean of the stages'.
    Each cause is undone in the actual work, and the steps are replayed:
    * uneven stages: each computation is scaled by the overall usual duration over its stage's;
    * slow workers: each computation is scaled by its stage's usual duration over its worker's;
    * uneven micro-batches: each computation takes its worker's usual duration;
    * slow transfers: everything that communicates takes its ideal work;
    * other operations: what computes neither forward nor backward takes its ideal work.
    Share of a cause: (T(actual) - T(undone)) / (T(actual) - T(ideal)), as in `slowdown.py`. Shares
    do not add up to 1: what two causes delay together is regained only with both.
    Micro-batches are uneven because of their lengths if forward and backward durations of the same
    micro-batch correlate by 0.9 or more (Pearson), each divided by its kind's mean on its worker.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.fleet.what_if.operations import Operations, Times
from stepscope.fleet.what_if.pipeline import COMPUTATIONS, is_communication
from stepscope.fleet.what_if.slowdown import Replays, Slowdown
from stepscope.run.figures import percent

STAGES = "uneven stages"
WORKERS = "slow workers"
MICRO_BATCHES = "uneven micro-batches"
TRANSFERS = "slow transfers"
OTHER = "other operations"

_NOTABLE_SLOWDOWN = 1.05
_NOTABLE_SHARE = 0.25
_SAME_LENGTHS = 0.9
_SLOW = 1.1
_MOST_NAMED = 8


@dataclass(frozen=True)
class Cause:
    """One cause of a slowdown.

    Attributes:
        name: `STAGES`, `WORKERS`, `MICRO_BATCHES`, `TRANSFERS` or `OTHER`.
        share: Share of the slowdown that goes away with it.
        step_ns: Mean step time without it.
    """

    name: str
    share: float
    step_ns: float
    sentence: str


@dataclass(frozen=True)
class Causes:
    """The causes of a job's slowdown, the largest share first."""

    all: tuple[Cause, ...]
    verdict: str


def find_causes(replays: Replays, slowdown: Slowdown) -> Causes:
    """Undoes each cause on its own, and says what it is worth."""
    if slowdown.slowdown < _NOTABLE_SLOWDOWN:
        return Causes(
            (),
            "no straggler: if all workers and micro-batches were alike, the mean step would take "
            f"{_milliseconds(slowdown.ideal_ns)} ms instead of "
            f"{_milliseconds(slowdown.actual_ns)} ms",
        )
    usual = _Usual(replays)
    undone = {
        STAGES: usual.scaled(usual.overall / usual.stage),
        WORKERS: usual.scaled(usual.stage / usual.worker),
        MICRO_BATCHES: usual.evened(),
        TRANSFERS: usual.ideal(usual.communicates),
        OTHER: usual.ideal(~usual.communicates & ~usual.computes),
    }
    lost = slowdown.actual_ns - slowdown.ideal_ns
    causes = []
    for name, work in undone.items():
        step_ns = float(replays.step_times(work).mean())
        share = (slowdown.actual_ns - step_ns) / lost
        causes.append(Cause(name, share, step_ns, _sentence(name, usual, slowdown)))
    causes.sort(key=lambda cause: -cause.share)
    said = "; ".join(
        f"{cause.sentence} ({percent(min(cause.share, 1))} of the slowdown)"
        for cause in causes
        if cause.share >= _NOTABLE_SHARE
    )
    return Causes(
        tuple(causes),
        f"{slowdown.slowdown:.2f} times as slow as if all were alike: "
        + (said or "no single cause makes a quarter of it"),
    )


class _Usual:
    """Usual durations of computations by worker and stage, as arrays of replica × operation."""

    def __init__(self, replays: Replays) -> None:
        table = replays.operations.table
        self.operations: Operations = replays.operations
        self.actual: Times = replays.actual_ns
        self._ideal: Times = replays.ideal_ns
        self.kinds = table["kind"].to_numpy()
        self.stages = table["stage"].to_numpy()
        self.computes = np.isin(self.kinds, COMPUTATIONS)
        self.communicates = np.array([is_communication(str(kind)) for kind in self.kinds])
        over_steps = self.actual.mean(axis=0)
        self.worker = np.ones(over_steps.shape)
        self.stage = np.ones(over_steps.shape)
        self.overall = np.ones(over_steps.shape)
        for kind in COMPUTATIONS:
            of_kind = self.kinds == kind
            if not of_kind.any():
                continue
            of_stages = []
            for stage in np.unique(self.stages[of_kind]):
                here = of_kind & (self.stages == stage)
                of_worker = np.maximum(over_steps[:, here].mean(axis=1, keepdims=True), 1.0)
                of_stages.append(np.sort(of_worker, axis=0)[(len(of_worker) - 1) // 2, 0])
                self.worker[:, here] = of_worker
                self.stage[:, here] = of_stages[-1]
            self.overall[:, of_kind] = np.mean(of_stages)

    def scaled(self, factor: np.typing.NDArray[np.float64]) -> Times:
        return np.where(self.computes, np.rint(self.actual * factor), self.actual).astype(np.int64)

    def evened(self) -> Times:
        return np.where(self.computes, np.rint(self.worker), self.actual).astype(np.int64)

    def ideal(self, group: np.typing.NDArray[np.bool_]) -> Times:
        return np.where(group, self._ideal, self.actual)


def _sentence(name: str, usual: _Usual, slowdown: Slowdown) -> str:
    if name == STAGES:
        return _of_stages(usual)
    if name == WORKERS:
        return _of_workers(usual)
    if name == MICRO_BATCHES:
        return _of_micro_batches(usual)
    if name == TRANSFERS:
        slowest = _slowest(slowdown, communicates=True)
        return f"slow transfers, {slowest} above all"
    return f"uneven operations outside forward and backward, {_slowest(slowdown)} above all"


def _slowest(slowdown: Slowdown, *, communicates: bool = False) -> str:
    names = [str(name) for name in slowdown.by_kind["kind"]]
    fitting = [
        name
        for name in names
        if (is_communication(name) or name.endswith("-pp-comm")) == communicates
        and name not in COMPUTATIONS
    ]
    return fitting[0] if fitting else "none"


def _of_stages(usual: _Usual) -> str:
    stages = np.unique(usual.stages[usual.computes])
    totals = [
        float(usual.stage[0, usual.computes & (usual.stages == stage)].sum()) for stage in stages
    ]
    slowest = int(np.argmax(totals))
    others = np.delete(totals, slowest).mean() if len(totals) > 1 else totals[0]
    which = "the last stage" if slowest == len(stages) - 1 else f"stage {int(stages[slowest])}"
    return (
        f"uneven pipeline stages: {which} computes {totals[slowest] / others:.2f} times as long as "
        "the others"
    )


def _of_workers(usual: _Usual) -> str:
    slow = slow_workers(usual.operations, usual.actual)
    if slow.is_empty():
        return "workers that compute unevenly"
    named = [
        f"rank {rank} (data-parallel rank {replica}, stage {stage}) {ratio:.2f} times"
        for replica, stage, rank, ratio in slow.head(_MOST_NAMED).iter_rows()
    ]
    if len(named) == 1:
        return f"a slow worker: {named[0]} as long in its computations as the others of its stage"
    more = f" and {len(slow) - _MOST_NAMED} more" if len(slow) > _MOST_NAMED else ""
    return (
        f"slow workers: {', '.join(named)}{more}, as long in their computations as the others of "
        "their stages"
    )


def slow_workers(operations: Operations, work: Times) -> pl.DataFrame:
    """Workers whose computations take at least 1.1 times as long as is usual in their stage.

    Returns:
        Columns `replica`, `stage`, `rank`, `ratio`, the slowest first.
    """
    stages = operations.table["stage"].to_numpy()
    computes = np.isin(operations.table["kind"].to_numpy(), COMPUTATIONS)
    rows = []
    for stage in np.unique(stages[computes]):
        totals = work[:, :, computes & (stages == stage)].sum(axis=(0, 2))
        usual = max(float(np.sort(totals)[(len(totals) - 1) // 2]), 1.0)
        rows += [
            (int(replica), int(stage), float(total / usual))
            for replica, total in zip(operations.replicas, totals, strict=True)
            if total >= _SLOW * usual
        ]
    found = pl.DataFrame(
        rows,
        schema={"replica": pl.Int64, "stage": pl.Int64, "ratio": pl.Float64},
        orient="row",
    )
    return (
        found.join(operations.workers, on=["replica", "stage"], how="left")
        .sort("ratio", descending=True)
        .select("replica", "stage", "rank", "ratio")
    )


def _of_micro_batches(usual: _Usual) -> str:
    correlation = forward_backward_correlation(usual.operations, usual.actual)
    text = "uneven micro-batches"
    if correlation is None:
        return text
    if correlation >= _SAME_LENGTHS:
        return (
            f"{text}: those that take long forward take long backward too (correlation "
            f"{correlation:.2f}), as sequences of uneven length do"
        )
    return f"{text}, forward and backward independently of each other ({correlation:.2f})"


def forward_backward_correlation(operations: Operations, work: Times) -> float | None:
    """How forward and backward durations of the same micro-batch go together.

    Each is measured against the mean of its kind on its worker, over all steps.

    Returns:
        Pearson's correlation; None where durations do not vary.
    """
    # Where micro-batches are not known, they are taken to run backward in the order of forward.
    known = bool((operations.table["micro_batch"] >= 0).any())
    same = ["stage", "model_chunk", "micro_batch" if known else "number"]
    table = operations.table.with_row_index("place").select("place", "kind", *same)
    forward = table.filter(pl.col("kind") == COMPUTATIONS[0])
    backward = table.filter(pl.col("kind") == COMPUTATIONS[1])
    pairs = forward.join(backward, on=same, suffix="_backward")
    if pairs.is_empty():
        return None
    sides = []
    for column in ("place", "place_backward"):
        values = work[:, :, pairs[column].to_numpy()].astype(np.float64)
        stages = pairs["stage"].to_numpy()
        for stage in np.unique(stages):
            here = stages == stage
            usual = values[:, :, here].mean(axis=(0, 2), keepdims=True)
            values[:, :, here] = values[:, :, here] / np.maximum(usual, 1.0) - 1
        sides.append(values.reshape(-1))
    if min(side.std() for side in sides) <= 0:
        return None
    return float(np.corrcoef(sides[0], sides[1])[0, 1])


def _milliseconds(time_ns: float) -> str:
    return f"{time_ns / 1e6:,.1f}"
