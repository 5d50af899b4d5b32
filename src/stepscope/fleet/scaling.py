"""How well a job scales: the same training on few ranks and on many.

Definitions
    Steps are those of `rank_steps`; of each side the mean over all ranks and steps, without each
    rank's first step where it has three or more.
    Weak efficiency: step time of the first side over that of the second. It is what counts where
    each rank does as much work in a step on both sides, as in data parallelism.
    Strong efficiency: the same times ranks of the first over ranks of the second. It is what
    counts where all ranks together do as much on both sides.
    Growth of a part: its mean in the second less its mean in the first; the parts' growths add up
    to the step's. Waiting for other ranks is stated apart, since it may overlap computation.
    A rank's growth is its own time (the step less exposed communication) less the first side's
    median own time: ranks with much of it hold the others up.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from stepscope.analysis.questions import Question
from stepscope.analysis.selection.scope import AnsweredScope
from stepscope.errors import UsageError
from stepscope.fleet.job import Job
from stepscope.fleet.rank_map import map_steps, rank_table
from stepscope.fleet.rank_steps import PARTS
from stepscope.run.figures import duration, percent, shortened_list

GROWTH: dict[str, pl.DataType | type[pl.DataType]] = {
    "part": pl.String,
    "a_ns": pl.Int64,
    "b_ns": pl.Int64,
    "growth_ns": pl.Int64,
    "growth_share": pl.Float64,  # of the first side's step
}
"""One row per part of the step, then the step and the waits for other ranks."""

RANKS: dict[str, pl.DataType | type[pl.DataType]] = {
    "rank": pl.Int64,
    "host": pl.String,
    "mean_step_ns": pl.Int64,
    "own_ns": pl.Int64,
    "own_growth_ns": pl.Int64,
    "wait_ns": pl.Int64,
    "exposed_comm_ns": pl.Int64,
}
"""One row per rank of the second side, the greatest growth first."""

SCALING = Question(
    "scaling",
    "how efficient many ranks are against few, and which part of the step grew, on which ranks",
    "stepscope.fleet.scaling:compare_scaling",
    {"growth": "What grew", "ranks": "Ranks of the second side"},
    over_ranks=True,
)
_WARM = 3
_STEP, _WAITING, _COMMUNICATION = "step", "waiting for other ranks", "exposed communication"
_LABELS = {"wall_ns": _STEP, "wait_ns": _WAITING, "exposed_comm_ns": _COMMUNICATION}
_MOSTLY = 0.5
_NOTABLE = 0.05  # of the first side's step
_MOST_NAMED = 4


@dataclass(frozen=True)
class Scaling:
    """The same training on few ranks and on many.

    Attributes:
        verdict: Efficiency, what grew most, and on which ranks.
        a_ranks: Ranks of the first side's job.
        a_step_ns: Mean step of the first side.
        scope: What the second side's part covers.
    """

    verdict: str
    a_ranks: int
    b_ranks: int
    a_step_ns: int
    b_step_ns: int
    weak_efficiency: float
    strong_efficiency: float
    growth: pl.DataFrame
    ranks: pl.DataFrame
    scope: AnsweredScope
    notes: tuple[str, ...]


def compare_scaling(a: Job, b: Job) -> Scaling:
    """Compares a job on few ranks with the same on many."""
    first, second = _steady(map_steps(a)), _steady(map_steps(b))
    a_ranks, b_ranks = a.world_size or len(a.parts), b.world_size or len(b.parts)
    growth = _growth(first, second)
    a_step, b_step = _mean(first, "wall_ns"), _mean(second, "wall_ns")
    if not a_step or not b_step:
        raise UsageError("a side has steps without duration: there is nothing to compare")
    weak = a_step / b_step
    ranks = _ranks(first, second, b)
    return Scaling(
        verdict=_verdict(growth, ranks, a_ranks, b_ranks, weak),
        a_ranks=a_ranks,
        b_ranks=b_ranks,
        a_step_ns=a_step,
        b_step_ns=b_step,
        weak_efficiency=weak,
        strong_efficiency=weak * a_ranks / b_ranks,
        growth=growth,
        ranks=ranks,
        scope=b.scope,
        notes=(
            *(f"first side: {note}" for note in a.notes),
            *(f"second side: {note}" for note in b.notes),
        ),
    )


def _steady(steps: pl.DataFrame) -> pl.DataFrame:
    place = pl.int_range(pl.len()).over("rank")
    return steps.filter((place > 0) | (pl.len().over("rank") < _WARM))


def _mean(steps: pl.DataFrame, name: str) -> int:
    values = steps[name].drop_nulls().to_numpy()
    return round(float(values.mean())) if len(values) else 0


def _growth(first: pl.DataFrame, second: pl.DataFrame) -> pl.DataFrame:
    step = _mean(first, "wall_ns")
    rows = []
    for name in (*PARTS, "wall_ns", "wait_ns"):
        before, after = _mean(first, name), _mean(second, name)
        word = _LABELS.get(name) or name.removesuffix("_ns").replace("_", " ")
        share = (after - before) / step if step else None
        rows.append((word, before, after, after - before, share))
    return pl.DataFrame(rows, schema=GROWTH, orient="row")


def _ranks(first: pl.DataFrame, second: pl.DataFrame, job: Job) -> pl.DataFrame:
    by_rank = first.group_by("rank").agg(pl.col("own_ns").mean())["own_ns"]
    usual = round(float(by_rank.sort().to_numpy()[(len(by_rank) - 1) // 2]))
    table = rank_table(job, second).with_columns(own_growth_ns=pl.col("own_ns") - usual)
    return table.select(list(RANKS))


def _verdict(
    growth: pl.DataFrame, ranks: pl.DataFrame, a_ranks: int, b_ranks: int, weak: float
) -> str:
    text = (
        f"{b_ranks} ranks against {a_ranks}: {percent(weak)} efficiency if each rank does as much "
        f"work per step as before, {percent(weak * a_ranks / b_ranks)} if all together do"
    )
    parts = growth.head(len(PARTS)).sort("growth_ns", "part", descending=[True, False])
    worst = parts.row(0, named=True)
    if worst["growth_ns"] <= 0:
        return text
    share = (
        f", {percent(worst['growth_share'])} of the step before" if worst["growth_share"] else ""
    )
    text += f"; what grew most is {worst['part']}: +{duration(worst['growth_ns'])}{share}"
    if worst["part"] == _COMMUNICATION:
        waiting = growth.filter(pl.col("part") == _WAITING)["growth_ns"][0]
        is_waiting = waiting >= _MOSTLY * worst["growth_ns"]
        text += (
            ", mostly waiting for other ranks" if is_waiting else ", in the transfers themselves"
        )
    step_ns = growth.filter(pl.col("part") == _STEP)["a_ns"][0]
    return f"{text}. {_slower_ranks(ranks, step_ns)}"


def _slower_ranks(ranks: pl.DataFrame, step_ns: int) -> str:
    notable = ranks.filter(pl.col("own_growth_ns") >= _NOTABLE * step_ns)
    if notable.is_empty():
        return "No rank takes notably longer by itself"
    if len(notable) > _MOSTLY * len(ranks):
        middle = duration(notable["own_growth_ns"][len(notable) // 2])
        return f"{len(notable)} of {len(ranks)} ranks take longer by themselves, about {middle}"
    named = [
        f"rank {rank}{f' on {host}' if host else ''}: +{duration(grew)}"
        for rank, host, grew in notable.select("rank", "host", "own_growth_ns").iter_rows()
    ]
    several = f"{len(notable)} ranks take longer by themselves"
    text = several if len(notable) > 1 else "1 rank takes longer by itself"
    return f"{text}: {shortened_list(named, _MOST_NAMED)}"
