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
    Delay slowdown: recorded mean step time / T(actual): what the replay leaves out.
    Score of a worker: the smaller of its replica's and its stage's slowdown.
    Share explained by a group: (T(actual) - T(actual, but the group's ideal)) / (T(actual) -
    T(ideal)). The paper's M_W takes the three hundredths of the workers with the highest scores
    (at least one), M_S the last stage. A share may exceed 1: making the last stage average makes
    it shorter than it has to be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.fleet.what_if.operations import JobShape, Operations, Times
from stepscope.fleet.what_if.pipeline import is_communication, pipeline_of, reported_kind
from stepscope.fleet.what_if.program import Program
from stepscope.fleet.what_if.replay import launch_delays, replay, transfers

_IMPOSSIBLE_NS = -10_000_000
"""Below this a duration or delay is an error of clocks, and counts as nothing."""
_WORST_PERCENT = 3

STEPS: dict[str, pl.DataType | type[pl.DataType]] = {
    "step": pl.Int64,
    "recorded_ns": pl.Int64,
    "actual_ns": pl.Int64,  # replayed without launch delays
    "ideal_ns": pl.Int64,
    "slowdown": pl.Float64,  # actual / ideal
    "delay_slowdown": pl.Float64,  # recorded / actual
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
class Explained:
    """What a group of operations has to do with the slowdown.

    Attributes:
        without_ns: Mean step time with the group's work ideal and all else actual.
        only_ns: Mean step time with the group's work actual and all else ideal.
        removed_share: Share of the slowdown that goes away with the group made ideal.
        added_share: Share of the slowdown that the group makes alone.
    """

    without_ns: float
    only_ns: float
    removed_share: float
    added_share: float


@dataclass(frozen=True)
class Slowdown:
    """The slowdown of a job, and whose it is.

    Attributes:
        slowdown: Actual mean step time over the ideal one.
        delay_slowdown: Recorded mean step time over the actual one as replayed.
        actual_ns: Mean step time as replayed.
        ideal_ns: Mean step time with ideal work.
        steps: Columns `STEPS`.
        by_replica: Columns `replica`, `slowdown`; the highest first, as in all of these.
        by_stage: Columns `stage`, `slowdown`.
        by_kind: Columns `kind`, `slowdown`.
        per_step: The same by step: columns `step`, `dimension` ("replica", "stage" or "kind"),
            `name`, `slowdown`.
        workers: Columns `WORKERS`.
        worst_workers: Pairs (replica, stage) of the workers with the highest scores.
        by_worst_workers: What those explain (M_W).
        by_last_stage: What the last stage explains (M_S).
    """

    shape: JobShape
    slowdown: float
    delay_slowdown: float
    actual_ns: float
    ideal_ns: float
    steps: pl.DataFrame
    by_replica: pl.DataFrame
    by_stage: pl.DataFrame
    by_kind: pl.DataFrame
    per_step: pl.DataFrame
    workers: pl.DataFrame
    worst_workers: tuple[tuple[int, int], ...]
    by_worst_workers: Explained
    by_last_stage: Explained
    left_out: dict[str, int] = field(default_factory=dict)


class Replays:
    """A job's operations, to be replayed with actual, ideal and mixed work.

    Attributes:
        program: What waits for what.
        actual_ns: Work of each step, replica and operation.
        ideal_ns: Ideal work, likewise.
        left_out: Transfers that could not be matched, and steps left out, by reason.
    """

    def __init__(self, operations: Operations, name: str = "operations") -> None:
        pipeline = pipeline_of(operations, name)
        self.operations = operations
        self.program: Program = pipeline.program
        start, end = operations.start_ns, operations.start_ns + operations.dur_ns
        work = transfers(self.program, start, end)
        self.actual_ns = np.where(work <= _IMPOSSIBLE_NS, 0, work)
        self.ideal_ns = _ideal(operations, self.actual_ns)
        delays = launch_delays(self.program, start, end)
        self._delays = np.where(delays <= _IMPOSSIBLE_NS, 0, delays)
        self.left_out = dict(operations.left_out)
        if pipeline.unmatched_transfers:
            self.left_out["transfers without a partner, replayed as if they waited for nobody"] = (
                pipeline.unmatched_transfers
            )

    def step_times(self, work_ns: Times, *, with_delays: bool = False) -> Times:
        """The duration of each step."""
        delays = self._delays if with_delays else np.zeros_like(self._delays)
        _, end = replay(self.program, work_ns, delays)
        longest: Times = end.max(axis=(1, 2))
        return longest

    def mixed(self, group: npt.NDArray[np.bool_], inside: Times, outside: Times) -> Times:
        """Work of which a group's is taken from one array, and all else from another.

        Args:
            group: Of each replica and operation, or what broadcasts to it.
            inside: The work of the group.
            outside: The work of all others.
        """
        return np.where(group, inside, outside)

    def explained(self, group: npt.NDArray[np.bool_]) -> Explained:
        """What a group has to do with the slowdown."""
        actual = float(self.step_times(self.actual_ns).mean())
        ideal = float(self.step_times(self.ideal_ns).mean())
        without = float(self.step_times(self.mixed(group, self.ideal_ns, self.actual_ns)).mean())
        only = float(self.step_times(self.mixed(group, self.actual_ns, self.ideal_ns)).mean())
        lost = actual - ideal
        return Explained(
            without,
            only,
            (actual - without) / lost if lost else 0.0,
            (only - ideal) / lost if lost else 0.0,
        )


def find_slowdown(replays: Replays) -> Slowdown:
    """Works out the slowdown of a job, and whose it is."""
    operations = replays.operations
    recorded = (operations.start_ns + operations.dur_ns).max(axis=(1, 2))
    actual = replays.step_times(replays.actual_ns)
    ideal = replays.step_times(replays.ideal_ns)
    kinds = operations.table.select(reported_kind()).to_series()
    groups = {
        "replica": _groups(operations.replicas, lambda value: _replicas(operations, value)),
        "stage": _groups(range(operations.shape.stages), lambda value: _stages(operations, value)),
        "kind": _groups(sorted(kinds.unique()), lambda value: (kinds == value).to_numpy()),
    }
    tables, per_step = {}, []
    for dimension, members in groups.items():
        table, steps = _by_group(replays, dimension, members, ideal)
        tables[dimension] = table
        per_step.append(steps)
    workers = _scores(operations, tables["replica"], tables["stage"])
    worst = _worst(workers)
    return Slowdown(
        operations.shape,
        float(actual.mean() / ideal.mean()),
        float(recorded.mean() / actual.mean()),
        float(actual.mean()),
        float(ideal.mean()),
        pl.DataFrame(
            {
                "step": operations.steps,
                "recorded_ns": recorded,
                "actual_ns": actual,
                "ideal_ns": ideal,
                "slowdown": actual / ideal,
                "delay_slowdown": recorded / actual,
            },
            schema=STEPS,
        ),
        tables["replica"],
        tables["stage"],
        tables["kind"],
        pl.concat(per_step),
        workers,
        worst,
        replays.explained(workers_group(operations, worst)),
        replays.explained(_stages(operations, operations.shape.stages - 1)),
        replays.left_out,
    )


def workers_group(
    operations: Operations, workers: Iterable[tuple[int, int]]
) -> npt.NDArray[np.bool_]:
    """The operations of some workers, of each replica and operation."""
    group = np.zeros((len(operations.replicas), len(operations.table)), np.bool_)
    for replica, stage in workers:
        group |= _replicas(operations, replica) & _stages(operations, stage)
    return group


def _ideal(operations: Operations, work: Times) -> Times:
    ideal = np.zeros_like(work)
    kinds = operations.table["kind"].to_numpy()
    for kind in np.unique(kinds):
        of_kind = kinds == kind
        usual = np.median if is_communication(str(kind)) else np.mean
        ideal[:, :, of_kind] = round(float(usual(work[:, :, of_kind])))
    return ideal


def _groups(
    values: Iterable[Any], members: Callable[[Any], npt.NDArray[np.bool_]]
) -> dict[Any, npt.NDArray[np.bool_]]:
    return {value: members(value) for value in values}


def _replicas(operations: Operations, replica: int) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = (operations.replicas == replica)[:, None]
    return found


def _stages(operations: Operations, stage: int) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = operations.table["stage"].to_numpy() == stage
    return found


def _by_group(
    replays: Replays, dimension: str, groups: dict[Any, npt.NDArray[np.bool_]], ideal: Times
) -> tuple[pl.DataFrame, pl.DataFrame]:
    names, slowdowns, parts = [], [], []
    for name, group in groups.items():
        times = replays.step_times(replays.mixed(group, replays.actual_ns, replays.ideal_ns))
        names.append(name)
        slowdowns.append(float(times.mean() / ideal.mean()))
        parts.append(
            pl.DataFrame(
                {
                    "step": replays.operations.steps,
                    "dimension": [dimension] * len(times),
                    "name": [str(name)] * len(times),
                    "slowdown": times / ideal,
                }
            )
        )
    table = pl.DataFrame({dimension: names, "slowdown": slowdowns})
    return table.sort("slowdown", dimension, descending=[True, False]), pl.concat(parts)


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
