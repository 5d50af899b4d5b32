"""Ranks and steps as a map: which rank is slow in which step, and in which part of it.

Definitions
    `rank_steps` defines a step's parts; on a GPU, waiting for other ranks is exposed communication.
    `wait_ns` is the part of a rank's collectives in which it waited for others: their durations
    less the shortest of the collective (see `matched`). Waits may overlap computation.
    `own_ns` is the step less the exposed communication: what the rank does by itself. The rank with
    the most of it sets the pace; `slowest` counts the steps in which it does.
    Over the ranks, imbalance is the greatest value less the median.
    The representative ranks are those to look at first: the one with the most own time, the median
    one and the one with the least, and in each part of the step that differs notably the greatest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.analysis.blame.compared import match_arrivals
from stepscope.analysis.selection.scope import AnsweredScope
from stepscope.errors import UsageError
from stepscope.fleet.job import Job
from stepscope.fleet.rank_steps import PARTS, STEPS
from stepscope.fleet.stragglers import Stragglers, stragglers_of_job

RANKS: dict[str, pl.DataType | type[pl.DataType]] = {
    "rank": pl.Int64,
    "host": pl.String,
    "steps": pl.Int64,
    "mean_step_ns": pl.Int64,
    "own_ns": pl.Int64,  # per step
    "wait_ns": pl.Int64,  # per step; null without matched collectives
    "input_ns": pl.Int64,  # per step, like the following
    "compute_ns": pl.Int64,
    "exposed_comm_ns": pl.Int64,
    "copies_ns": pl.Int64,
    "other_ns": pl.Int64,
    "slowest": pl.Int64,  # steps in which it had the most own time
}
"""One row per rank, the most own time first."""

SPREAD: dict[str, pl.DataType | type[pl.DataType]] = {
    "part": pl.String,
    "median_ns": pl.Int64,  # per step, over the ranks
    "least_ns": pl.Int64,
    "most_ns": pl.Int64,
    "most_rank": pl.Int64,
    "imbalance_ns": pl.Int64,
    "imbalance_share": pl.Float64,  # of the mean step
}
"""One row per part of the step."""

_NOTABLE = 0.05


@dataclass(frozen=True)
class RankMap:
    """The steps of all ranks.

    Attributes:
        verdict: Who makes the others wait beyond chance, as `stragglers` says it; empty where
            ranks are not compared.
        slowest_by_own_time: The rank with the most of it; of healthy ranks too, one has the most.
        parts: Columns `SPREAD`.
        steps: Columns `rank_steps.STEPS`, `own_ns` and `wait_ns`, by rank and step.
    """

    verdict: str
    slowest_by_own_time: int | None
    mean_step_ns: int | None
    look_at: tuple[int, ...]
    ranks: pl.DataFrame
    parts: pl.DataFrame
    steps: pl.DataFrame
    scope: AnsweredScope
    notes: tuple[str, ...]


def rank_map(job: Job, stragglers: Stragglers | None = None) -> RankMap:
    """Maps the ranks and steps of a job.

    Args:
        stragglers: Who makes whom wait, where that is known already.
    """
    steps = map_steps(job)
    ranks = rank_table(job, steps)
    parts = _spread(ranks)
    return RankMap(
        verdict=_verdict(job, stragglers),
        slowest_by_own_time=int(ranks["rank"][0]),
        mean_step_ns=_mean(steps["wall_ns"]),
        look_at=_look_at(ranks, parts),
        ranks=ranks,
        parts=parts,
        steps=steps,
        scope=job.scope,
        notes=job.notes,
    )


def map_steps(job: Job) -> pl.DataFrame:
    """The steps of a job's ranks: columns `rank_steps.STEPS`, `own_ns` and `wait_ns`."""
    steps = job.steps()
    if steps.is_empty():
        raise UsageError("the traces have no steps (ProfilerStep#N): there is nothing to map")
    return (
        steps.with_columns(own_ns=pl.col("wall_ns") - pl.col("exposed_comm_ns"))
        .join(_waits(job), on=["rank", "step"], how="left", maintain_order="left")
        .sort("rank", "step")
        .select([*STEPS, "own_ns", "wait_ns"])
    )


def _verdict(job: Job, stragglers: Stragglers | None) -> str:
    try:
        return (stragglers or stragglers_of_job(job)).verdict
    except UsageError as error:
        return "" if len(job.parts) < 2 else f"the ranks are not compared: {error}"


def _waits(job: Job) -> pl.DataFrame:
    if len(job.parts) < 2:
        return pl.DataFrame(schema=dict.fromkeys(("rank", "step", "wait_ns"), pl.Int64))
    matched = match_arrivals([part.arrivals for part in job.parts])
    return (
        pl.DataFrame(
            {
                "rank": matched.ranks[matched.rank],
                "step": matched.step,
                "wait_ns": matched.wait_ns,
            }
        )
        .group_by("rank", "step")
        .agg(pl.col("wait_ns").sum())
    )


def rank_table(job: Job, steps: pl.DataFrame) -> pl.DataFrame:
    """Columns `RANKS`, of steps that `map_steps` returned."""
    hosts = pl.DataFrame(
        {"rank": list(job.ranks), "host": [part.host for part in job.parts]},
        schema={"rank": pl.Int64, "host": pl.String},
    )
    most = steps.sort("step", "own_ns", "rank", descending=[False, True, False])
    slowest = most.unique("step", keep="first")["rank"].value_counts(name="slowest")
    per_step = (*PARTS, "own_ns", "wait_ns")
    return (
        steps.group_by("rank", maintain_order=True)
        .agg(
            pl.len().alias("steps"),
            pl.col("wall_ns").mean().round().alias("mean_step_ns"),
            *(pl.col(name).mean().round() for name in per_step),
        )
        .join(hosts, on="rank", how="left", maintain_order="left")
        .join(slowest, on="rank", how="left", maintain_order="left")
        .with_columns(pl.col("slowest").fill_null(0))
        .sort("own_ns", "rank", descending=[True, False])
        .select(pl.col(name).cast(dtype) for name, dtype in RANKS.items())
    )


def _spread(ranks: pl.DataFrame) -> pl.DataFrame:
    step_ns = _mean(ranks["mean_step_ns"])
    rows = []
    for name in ("mean_step_ns", "own_ns", *PARTS):
        values = ranks.select("rank", name).sort(name, "rank", descending=[True, False])
        most, median = int(values[name][0]), round(float(np.median(values[name].to_numpy())))
        rows.append(
            {
                "part": name.removesuffix("_ns").replace("_", " "),
                "median_ns": median,
                "least_ns": int(values[name][-1]),
                "most_ns": most,
                "most_rank": values["rank"][0],
                "imbalance_ns": most - median,
                "imbalance_share": (most - median) / step_ns if step_ns else None,
            }
        )
    return pl.DataFrame(rows, schema=SPREAD)


def _mean(values: pl.Series) -> int:
    return round(float(values.to_numpy().mean()))


def _look_at(ranks: pl.DataFrame, parts: pl.DataFrame) -> tuple[int, ...]:
    by_own = ranks["rank"].to_list()
    notable = parts.filter(pl.col("imbalance_share") >= _NOTABLE)["most_rank"].to_list()
    chosen = [by_own[0], *notable, by_own[len(by_own) // 2], by_own[-1]]
    return tuple(dict.fromkeys(chosen))
