"""Reads a table of a pipeline-parallel job's operations into arrays that can be replayed.

The form is that of ByteDance's published straggler data: one row per operation, with the columns
`dp_rank`, `stage`, `step`, `optype`, `seq_id`, `start_ts` and `duration` (seconds), and, where they
are known, `rank`, `mc` and `gmc` (model chunk in the stage and in the model) and `mb_id`
(micro-batch). `seq_id` counts the operations of one type, worker and step from 0.

Words
    Replica: the workers of one data-parallel rank; every replica runs the same operations.
    Worker: one stage of one replica. Only one of its tensor-parallel ranks is recorded.
    Operation: of a replica, known by stage, type and number. It runs once per replica and step.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.errors import UnreadableInputError

REQUIRED = ("dp_rank", "stage", "step", "optype", "seq_id", "start_ts", "duration")
OPTIONAL = ("rank", "mc", "gmc", "mb_id")
_MOST_SECONDS = 10_000_000.0
_KEY = ("stage", "kind", "number")

Times = npt.NDArray[np.int64]

INCOMPLETE = "steps in which a replica lacks an operation that the others have"
"""Why a step is left out."""


@dataclass(frozen=True)
class Operations:
    """The operations of a job.

    Attributes:
        table: One row per operation of a replica, ordered by `stage`, `kind`, `number`; further
            columns are `chunk`, `model_chunk` and `micro_batch` (-1 where there is none), and
            `start_ns` and `end_ns`, the medians over all replicas and steps. An order that all of
            them have is the order of the medians.
        workers: Columns `replica`, `stage`, `rank`: the recorded rank of each worker.
        steps: The steps, ascending; the first axis of the arrays.
        replicas: The data-parallel ranks, ascending; the second axis. The third is `table`.
        start_ns: Start, counted from the first start in the step.
        dur_ns: Duration, waiting for peers included.
    """

    stages: int
    table: pl.DataFrame
    workers: pl.DataFrame
    steps: npt.NDArray[np.int64]
    replicas: npt.NDArray[np.int64]
    start_ns: Times
    dur_ns: Times
    left_out: dict[str, int]


def read_operations(path: Path) -> Operations:
    """Reads a Parquet file of operations."""
    try:
        table = pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise UnreadableInputError(f"{path}: not a readable Parquet file: {error}") from error
    return operations_of(table, str(path))


def operations_of(table: pl.DataFrame, name: str = "operations") -> Operations:
    """Arranges a table of operations.

    Args:
        table: Columns as in the module's docstring.
    """
    rows = _checked(table, name)
    per_step = rows.select("replica", "step").unique().group_by("step").len()["len"]
    replicas = np.sort(rows["replica"].unique().to_numpy())
    lanes = int(per_step.sum())
    counts = rows.group_by(_KEY).agg(lanes=pl.len())
    # An operation that most steps have belongs to every step.
    template = counts.filter(2 * pl.col("lanes") > lanes).select(_KEY).sort(_KEY)
    template = template.with_row_index("operation")
    found = rows.join(template, on=_KEY, how="left").with_columns(
        is_first=pl.struct("replica", "step", *_KEY).is_first_distinct()
    )
    wanted = len(template) * len(replicas)
    complete = (
        found.group_by("step")
        .agg(
            fits=(pl.col("operation").is_not_null() & pl.col("is_first")).all()
            & (pl.len() == wanted)
        )
        .filter("fits")["step"]
    )
    kept = found.filter(pl.col("step").is_in(complete.implode()))
    if kept.is_empty():
        raise UnreadableInputError(
            f"{name}: no step has the same operations on every data-parallel rank, so there is "
            "nothing to replay"
        )
    steps = np.sort(kept["step"].unique().to_numpy())
    shape = (len(steps), len(replicas), len(template))
    kept = kept.with_columns(start=pl.col("start") - pl.col("start").min().over("step"))
    place = np.ravel_multi_index(
        (
            np.searchsorted(steps, kept["step"].to_numpy()),
            np.searchsorted(replicas, kept["replica"].to_numpy()),
            kept["operation"].to_numpy().astype(np.int64),
        ),
        shape,
    )
    return Operations(
        kept["stage"].n_unique(),
        _described(template, kept),
        kept.group_by("replica", "stage").agg(pl.col("rank").min()).sort("replica", "stage"),
        steps,
        replicas,
        _filled(shape, place, kept["start"]),
        _filled(shape, place, kept["duration"]),
        {INCOMPLETE: rows["step"].n_unique() - len(steps)} if len(steps) < len(per_step) else {},
    )


def _checked(table: pl.DataFrame, name: str) -> pl.DataFrame:
    missing = [column for column in REQUIRED if column not in table.columns]
    if missing:
        raise UnreadableInputError(
            f"{name}: no table of operations: the columns {', '.join(missing)} are missing"
        )
    if table.is_empty():
        raise UnreadableInputError(f"{name}: the table has no rows")
    optional = [
        (pl.col(column) if column in table.columns else pl.lit(-1)).cast(pl.Int64).alias(column)
        for column in OPTIONAL
    ]
    try:
        rows = table.select(
            pl.col("dp_rank").cast(pl.Int64).alias("replica"),
            pl.col("stage", "step").cast(pl.Int64),
            pl.col("optype").cast(pl.String).alias("kind"),
            pl.col("seq_id").cast(pl.Int64).alias("number"),
            pl.col("start_ts").cast(pl.Float64).alias("start"),
            pl.col("duration").cast(pl.Float64),
            *optional,
        )
    except pl.exceptions.PolarsError as error:
        raise UnreadableInputError(f"{name}: a column has the wrong type: {error}") from error
    bad = rows.filter(
        pl.any_horizontal(pl.col("replica", "stage", "step", "kind", "number").is_null())
        | ~pl.col("start").is_finite().fill_null(False)
        | ~pl.col("duration").is_between(0, _MOST_SECONDS).fill_null(False)
        | pl.any_horizontal(pl.col("replica", "stage", "number") < 0)
    )
    if len(bad):
        raise UnreadableInputError(
            f"{name}: {len(bad)} of {len(rows)} rows have no valid rank, stage, step, number, "
            f"start or duration; the first is {bad.row(0)}"
        )
    stages = rows["stage"].unique().sort().to_list()
    if stages != list(range(len(stages))):
        raise UnreadableInputError(f"{name}: the stages {stages} do not count up from 0")
    return rows.rename({"mc": "chunk", "gmc": "model_chunk", "mb_id": "micro_batch"})


def _described(template: pl.DataFrame, kept: pl.DataFrame) -> pl.DataFrame:
    seen = kept.group_by("operation").agg(
        pl.col("chunk", "model_chunk", "micro_batch").first(),
        start_ns=(pl.col("start").median() * 1e9).round().cast(pl.Int64),
        end_ns=((pl.col("start") + pl.col("duration")).median() * 1e9).round().cast(pl.Int64),
    )
    return template.join(seen, on="operation", how="left", maintain_order="left")


def _filled(shape: tuple[int, int, int], place: npt.NDArray[Any], seconds: pl.Series) -> Times:
    times = np.zeros(shape, np.int64)
    times.reshape(-1)[place] = np.rint(seconds.to_numpy() * 1e9).astype(np.int64)
    return times
