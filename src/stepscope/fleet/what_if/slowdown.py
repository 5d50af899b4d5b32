"""How much slower a job is than it would be if all workers and micro-batches were alike, and whose.

Definitions (arXiv 2505.05713, "Understanding Stragglers in Large Model Training Using What-if
Analysis", and its artifact)
    Work of an operation: its duration; of a transfer, its end less the latest start of its peers,
    so that waiting for them is no part of it. Work that clocks make more than 10 ms negative is 0.
    Ideal work: of operations that compute, the mean over all operations of the kind; of those that
    communicate, the median. Stages, replicas and steps are pooled.
    T(w): mean step time when the operations are replayed with the work `w` and without launch
    delays: each starts as soon as all that it depends on has ended (`pipeline.py`). A step lasts
    from its beginning to its last end.
    Slowdown: T(actual) / T(ideal).
    Slowdown of a group of operations: T(ideal, but the group's actual) / T(ideal).
    Score of a worker: the smaller of its replica's and its stage's slowdown.
    Worst workers: the three hundredths with the highest scores, at least one (the paper's M_W).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.fleet.what_if.operations import Operations, Times
from stepscope.fleet.what_if.pipeline import is_communication, pipeline_of, reported_kind

_IMPOSSIBLE_NS = -10_000_000
"""Below this a duration is an error of clocks, and counts as nothing."""
_WORST_PERCENT = 3

STEPS: dict[str, pl.DataType | type[pl.DataType]] = {
    "step": pl.Int64,
    "recorded_ns": pl.Int64,
    "actual_ns": pl.Int64,  # replayed without launch delays
    "ideal_ns": pl.Int64,
    "slowdown": pl.Float64,  # actual / ideal
}
"""One row per step."""

WORKERS: dict[str, pl.DataType | type[pl.DataType]] = {
    "replica": pl.Int64,
    "stage": pl.Int64,
    "rank": pl.Int64,  # the one that was recorded
    "score": pl.Float64,
}
"""One row per worker, the highest score first."""


@dataclass(frozen=True)
class Slowdown:
    """The slowdown of a job, and whose it is.

    Attributes:
        slowdown: Actual mean step time over the ideal one.
        actual_ns: Mean step time as replayed.
        ideal_ns: Mean step time with ideal work.
        by_replica: Columns `replica`, `slowdown`; the highest first, as in all of these.
        by_stage: Columns `stage`, `slowdown`.
        by_kind: Columns `kind`, `slowdown`.
        worst_workers: Pairs (replica, stage) of the workers with the highest scores.
    """

    slowdown: float
    actual_ns: float
    ideal_ns: float
    steps: pl.DataFrame
    by_replica: pl.DataFrame
    by_stage: pl.DataFrame
    by_kind: pl.DataFrame
    workers: pl.DataFrame
    worst_workers: tuple[tuple[int, int], ...]
    left_out: dict[str, int]


class Replays:
    """A job's operations, to be replayed with actual, ideal and mixed work.

    Attributes:
        actual_ns: Work of each step, replica and operation.
        left_out: Transfers that could not be matched, and steps left out, by reason.
    """

    def __init__(self, operations: Operations, name: str = "operations") -> None:
        self._program, unmatched = pipeline_of(operations, name)
        self.operations = operations
        start, end = operations.start_ns, operations.start_ns + operations.dur_ns
        work = self._program.transfers(start, end)
        self.actual_ns = np.where(work <= _IMPOSSIBLE_NS, 0, work)
        self.ideal_ns = _ideal(operations, self.actual_ns)
        self.left_out = dict(operations.left_out)
        if unmatched:
            self.left_out["transfers without a partner, replayed as if they waited for nobody"] = (
                unmatched
            )

    @cached_property
    def groups(self) -> dict[str, dict[Any, npt.NDArray[np.bool_]]]:
        """What belongs to each replica, stage and kind: of each replica and operation."""
        table, replicas = self.operations.table, self.operations.replicas
        stages, kinds = table["stage"], table.select(reported_kind()).to_series()
        return {
            "replica": {one: (replicas == one)[:, None] for one in replicas},
            "stage": {one: (stages == one).to_numpy() for one in range(self.operations.stages)},
            "kind": {one: (kinds == one).to_numpy() for one in sorted(kinds.unique())},
        }

    def step_times(self, work_ns: Times) -> Times:
        """The duration of each step."""
        longest: Times = self._program.replay(work_ns).max(axis=(1, 2))
        return longest

    def mean_step_ns(self, group: npt.NDArray[np.bool_], inside: Times, outside: Times) -> float:
        """The mean step with a group's work taken from one array, and all else from another.

        Args:
            group: Of each replica and operation, or what broadcasts to it.
        """
        return float(self.step_times(np.where(group, inside, outside)).mean())


def find_slowdown(replays: Replays) -> Slowdown:
    """Works out the slowdown of a job, and whose it is."""
    operations = replays.operations
    recorded = (operations.start_ns + operations.dur_ns).max(axis=(1, 2))
    actual = replays.step_times(replays.actual_ns)
    ideal = replays.step_times(replays.ideal_ns)
    tables = {
        dimension: _by_group(replays, dimension, members, ideal)
        for dimension, members in replays.groups.items()
    }
    workers = _scores(operations, tables["replica"], tables["stage"])
    return Slowdown(
        float(actual.mean() / ideal.mean()),
        float(actual.mean()),
        float(ideal.mean()),
        pl.DataFrame(
            {
                "step": operations.steps,
                "recorded_ns": recorded,
                "actual_ns": actual,
                "ideal_ns": ideal,
                "slowdown": actual / ideal,
            },
            schema=STEPS,
        ),
        tables["replica"],
        tables["stage"],
        tables["kind"],
        workers,
        _worst(workers),
        replays.left_out,
    )


def _ideal(operations: Operations, work: Times) -> Times:
    ideal = np.zeros_like(work)
    kinds = operations.table["kind"].to_numpy()
    for kind in np.unique(kinds):
        of_kind = kinds == kind
        usual = np.median if is_communication(str(kind)) else np.mean
        ideal[:, :, of_kind] = round(float(usual(work[:, :, of_kind])))
    return ideal


def _by_group(
    replays: Replays, dimension: str, groups: dict[Any, npt.NDArray[np.bool_]], ideal: Times
) -> pl.DataFrame:
    slowdowns = [
        replays.mean_step_ns(group, replays.actual_ns, replays.ideal_ns) / float(ideal.mean())
        for group in groups.values()
    ]
    table = pl.DataFrame({dimension: list(groups), "slowdown": slowdowns})
    return table.sort("slowdown", dimension, descending=[True, False])


def _scores(
    operations: Operations, by_replica: pl.DataFrame, by_stage: pl.DataFrame
) -> pl.DataFrame:
    return (
        operations.workers.join(by_replica, on="replica", how="left")
        .join(by_stage, on="stage", how="left", suffix="_of_stage")
        .with_columns(score=pl.min_horizontal("slowdown", "slowdown_of_stage"))
        .sort("score", "rank", "replica", "stage", descending=[True, False, False, False])
        .select(pl.col(column).cast(dtype) for column, dtype in WORKERS.items())
    )


def _worst(workers: pl.DataFrame) -> tuple[tuple[int, int], ...]:
    count = -(-len(workers) * _WORST_PERCENT // 100)
    rows = workers.head(count).select("replica", "stage").iter_rows()
    return tuple((int(replica), int(stage)) for replica, stage in rows)
