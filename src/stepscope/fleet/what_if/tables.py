"""How long the step of a recorded table of operations would take with one thing changed.

Definitions
    Those of `slowdown.py` and `cause.py`, the published what-if analysis of stragglers. Savings are
    taken from the step as replayed with the actual work and without launch delays.
    As usual: with ideal work. What is usual is a mean, so it also makes slower what was faster.
    Slower: the slowdown less 1, as a share of the step in which all is as usual; of a group of
    operations, of the step in which only its work is actual.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from stepscope.analysis.selection.scope import AnsweredScope, Scope
from stepscope.fleet.what_if.cause import find_causes
from stepscope.fleet.what_if.changes import FREE, HALF, Change, changes_table
from stepscope.fleet.what_if.operations import read_operations
from stepscope.fleet.what_if.pipeline import is_communication
from stepscope.fleet.what_if.slowdown import Replays, Slowdown, find_slowdown

UNDONE = "undone"
"""The change that undoes one of `cause`'s causes."""

AS_USUAL = "as usual"

STEPS: dict[str, pl.DataType | type[pl.DataType]] = {
    "step": pl.Int64,
    "recorded_ns": pl.Int64,
    "replayed_ns": pl.Int64,  # with no change, without launch delays
    "error_ns": pl.Int64,  # replayed less recorded: launch delays, above all
    "as_usual_ns": pl.Int64,
    "slower_share": pl.Float64,
}
"""One row per step."""

_WITHOUT_DELAYS = (
    "the replay starts each operation as soon as all that it waits for has ended: what the step is "
    "shorter by than the recorded one are delays of launches"
)


@dataclass(frozen=True)
class WhatIfOfOperations:
    """The step of a table of operations with one thing changed.

    Attributes:
        verdict: What slows the job down, in one sentence.
        slower_share: By what share of the step with all operations as usual the replayed one is
            longer.
        step_ns: Mean step as replayed, without launch delays. Savings are taken from it.
        changes: Columns `changes.CHANGES`.
        workers: Columns `replica`, `stage`, `rank`, `slower_share` (the smaller of its replica's
            and its stage's), the slowest first, as in the next ones.
        stages: Columns `stage`, `slower_share`.
        replicas: Columns `replica`, `slower_share`.
        kinds: Columns `kind`, `slower_share`.
    """

    verdict: str
    slower_share: float = field(metadata={"label": "slower than with all as usual"})
    recorded_ns: int = field(metadata={"label": "step, as recorded"})
    step_ns: int = field(metadata={"label": "step, as replayed"})
    changes: pl.DataFrame
    steps: pl.DataFrame
    workers: pl.DataFrame
    stages: pl.DataFrame
    replicas: pl.DataFrame
    kinds: pl.DataFrame
    scope: AnsweredScope
    notes: tuple[str, ...]


def what_if_of_operations(path: Path) -> WhatIfOfOperations:
    """Replays the operations of a Parquet file with one thing changed at a time."""
    operations = read_operations(path)
    replays = Replays(operations, str(path))
    found = find_slowdown(replays)
    causes = find_causes(replays, found)
    changes = [
        *(Change(cause.name, UNDONE, cause.step_ns) for cause in causes.all),
        *_changes(replays, found),
    ]
    recorded_ns = found.steps["recorded_ns"].mean()
    return WhatIfOfOperations(
        causes.verdict,
        found.slowdown - 1,
        round(recorded_ns if isinstance(recorded_ns, float) else 0),
        round(found.actual_ns),
        changes_table(changes, found.actual_ns),
        _steps(found),
        _shares(found.workers, "score"),
        _shares(found.by_stage),
        _shares(found.by_replica),
        _shares(found.by_kind),
        AnsweredScope(
            Scope(), tuple(operations.steps.tolist()), (), operations.dur_ns.size
        ).leaving_out(found.left_out),
        (_WITHOUT_DELAYS,),
    )


def _steps(found: Slowdown) -> pl.DataFrame:
    table = _shares(found.steps).with_columns(
        replayed_ns="actual_ns",
        error_ns=pl.col("actual_ns") - pl.col("recorded_ns"),
        as_usual_ns="ideal_ns",
    )
    return table.select(pl.col(name).cast(dtype) for name, dtype in STEPS.items())


def _shares(table: pl.DataFrame, column: str = "slowdown") -> pl.DataFrame:
    return table.with_columns(pl.col(column) - 1).rename({column: "slower_share"})


def _changes(replays: Replays, found: Slowdown) -> Iterator[Change]:
    actual, ideal, groups = replays.actual_ns, replays.ideal_ns, replays.groups
    yield Change("all operations", AS_USUAL, found.ideal_ns)

    def usual(subject: str, group: np.typing.NDArray[np.bool_]) -> Change:
        return Change(subject, AS_USUAL, replays.mean_step_ns(group, ideal, actual))

    ranks = {(row[0], row[1]): row[2] for row in found.workers.iter_rows()}
    for worker in found.worst_workers:
        group = groups["replica"][worker[0]] & groups["stage"][worker[1]]
        yield usual(f"rank {ranks[worker]} (replica {worker[0]}, stage {worker[1]})", group)
    for stage, group in groups["stage"].items():
        yield usual(f"stage {stage}", group)
    for kind, group in groups["kind"].items():
        yield usual(kind, group)
    moves = np.array([is_communication(str(kind)) for kind in replays.operations.table["kind"]])
    for how, work in ((HALF, actual // 2), (FREE, np.zeros_like(actual))):
        yield Change("all transfers", how, replays.mean_step_ns(moves, work, actual))
