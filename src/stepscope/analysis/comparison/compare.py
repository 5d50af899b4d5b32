"""What changed between two runs or traces, and whether it is more than noise.

Definitions
    The step's change is that of the median duration. With one run a side, its noise is that of the
    steps of these runs: the 95% interval of a difference of medians, as defined in `noise`. By how
    much runs differ, `repeated_runs` says; with several runs a side the step, its noise and whether
    it changed come from there. The tables are then those of one run a side, the one whose median
    lies nearest to its side's.
    Parts come from the step records of both sides where they tell parts, else from the windows. On
    GPUs, records tell the training thread's parts, and the windows those of the GPUs' steps, as
    they were recorded: both are compared, in tables of their own.
    Parts, kernels and operators are compared by their means per step, so that parts add up to the
    mean step; a step that lacks a kernel counts as 0. Their noise is the 95% interval of a
    difference of means: the standard error of each is s / √n (Student's t with as many degrees of
    freedom as both sides have steps, less two), or that of means of blocks of steps where those
    tell more (`noise`).
    With fewer than three steps on a side the noise is not known.
    Kernels are matched by name; operators by the path of operators that leads to them, and what
    finds no partner so, by name alone.

Status
    appeared, disappeared: on one side only. grew, shrank: beyond the noise. same: within it, or not
    changed at all. Where the noise is not known, every change counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.analysis.comparison.noise import BLOCKS, errors_of_blocks, noise_of_medians_ns
from stepscope.analysis.comparison.repeated_runs import RunsChange, change_of_runs, values_of
from stepscope.analysis.comparison.side import RECORD_BASIS, Side
from stepscope.analysis.comparison.student import student_95
from stepscope.run.figures import percent
from stepscope.trace.arrays.intervals import Int64Array

LEAST_STEPS = 3

CHANGES: dict[str, pl.DataType | type[pl.DataType]] = {
    "table": pl.String,  # part, thread_part, kernel, operator
    "name": pl.String,
    "status": pl.String,
    "matched_by": pl.String,  # name, or call path; null: no partner
    "place": pl.String,  # of operators the call path, where it was matched by one
    "a_count": pl.Float64,  # per step
    "b_count": pl.Float64,
    "a_ns": pl.Int64,  # mean per step
    "b_ns": pl.Int64,
    "delta_ns": pl.Int64,
    "noise_ns": pl.Int64,  # null: not known
}
"""Columns of `Comparison.changes`."""
_NOTABLE_QUEUE = 0.05
"""Share of the step that the training thread waits for a CPU, from which a reader must know."""
PART, THREAD_PART = "part", "thread_part"
"""Tables that divide a step: the compared steps, and on GPUs also the training thread's."""


@dataclass(frozen=True)
class StepChange:
    """The step of both sides.

    Attributes:
        a_ns: Median step of the first.
        b_ns: Median step of the second.
        delta_ns: What the second takes more.
        change_share: That, as a share of the first.
        noise_ns: By how much medians of such steps differ by chance; None: not known.
        is_beyond_noise: Whether the change is larger; also where the noise is not known.
        a_steps: Number of steps of the first.
        b_steps: Number of steps of the second.
    """

    a_ns: int
    b_ns: int
    delta_ns: int
    change_share: float
    noise_ns: int | None
    is_beyond_noise: bool
    a_steps: int
    b_steps: int


@dataclass(frozen=True)
class Comparison:
    """What changed.

    Attributes:
        a: The first side.
        b: The second side.
        step: The step.
        changes: One row per part, kernel and operator, columns `CHANGES`; parts in their order,
            the others by the size of their change.
        differences: What else differs between the sides (GPUs, number of ranks, kind of step), or
            disturbed them (busy CPUs), so that not every change need come from the code.
        notes: What a reader must know besides.
        runs: The change of the step and its parts, judged by runs.
    """

    a: Side
    b: Side
    step: StepChange
    changes: pl.DataFrame
    differences: tuple[str, ...]
    notes: tuple[str, ...]
    runs: RunsChange


def compare(a: Side, b: Side, *, runs: RunsChange | None = None) -> Comparison:
    """Compare two sides, the second against the first.

    Args:
        a: The first side; of several runs the one that stands for them.
        b: The second.
        runs: What their runs say; None if these are all, and no earlier run of them is known.
    """
    runs = runs or change_of_runs([values_of(a)], [values_of(b)])
    notes = [*(f"{a.path}: {note}" for note in a.notes), *(f"{b.path}: {n}" for n in b.notes)]
    differences = [
        f"the {what} differ: {ours} before, {theirs} after"
        for what, ours, theirs in (("GPUs", a.gpus, b.gpus), ("jobs", a.ranks, b.ranks))
        if ours and theirs and ours != theirs
    ]
    if a.basis != b.basis:
        differences.append(f"the kinds of step differ: {a.basis} before, {b.basis} after")
    if waits := _waits_for_cpus(a, b):
        differences.append(waits)
    pieces = []
    # Records hold many steps, and not slowed ones; a window holds a few.
    records_tell = len(a.record_parts) > 0 and len(b.record_parts) > 0
    of_gpus = a.is_of_gpus and b.is_of_gpus
    ours, theirs = (a.by_record, b.by_record) if records_tell and not of_gpus else (a, b)
    if ours.parts_basis == theirs.parts_basis:
        pieces.append(_parts(ours, theirs, PART))
        if RECORD_BASIS in (a.basis, b.basis) and ours.parts_basis != RECORD_BASIS:
            notes.append(_parts_of_windows(ours, theirs))
    else:
        notes.append(f"parts cannot be compared: {ours.parts_basis} against {theirs.parts_basis}")
    if records_tell and of_gpus:
        pieces.append(_parts(a.by_record, b.by_record, THREAD_PART))
    pieces.append(_by_change(_match(a.kernels, b.kernels, a, b, "kernel")))
    if a.operators_basis == b.operators_basis:
        pieces.append(_by_change(_match_operators(a, b)))
    else:
        notes.append(
            f"operators cannot be compared: {a.operators_basis} against {b.operators_basis}"
        )
    step = _change_of_repeated(runs) if runs.is_repeated else _step_change(a.step_ns, b.step_ns)
    if runs.is_repeated:
        notes.append(f"the tables compare one run of each side: {a.path} and {b.path}")
    if step.noise_ns is None:
        notes.append(f"fewer than {LEAST_STEPS} steps on a side: the noise is not known")
    return Comparison(ours, theirs, step, pl.concat(pieces), tuple(differences), tuple(notes), runs)


def _parts(a: Side, b: Side, table: str) -> pl.DataFrame:
    """The changes of the parts that any side has, in the order of the parts."""
    changes = _match(a.parts, b.parts, a, b, table)
    order = pl.concat([a.parts["name"], b.parts["name"]]).unique(maintain_order=True)
    known = changes.filter((pl.col("a_ns") > 0) | (pl.col("b_ns") > 0))
    return order.to_frame().join(known, on="name", maintain_order="left").select(list(CHANGES))


def _waits_for_cpus(a: Side, b: Side) -> str:
    """That other programs, or threads of its own, took a side's CPUs; empty if they hardly did."""
    shares = [side.queued_share for side in (a, b)]
    known = [share for share in shares if share is not None]
    if not known or max(known) < _NOTABLE_QUEUE:
        return ""
    before, after = ("an unknown share" if share is None else percent(share) for share in shares)
    return (
        f"the CPUs were busy: the training thread waited for one for {before} of the step before, "
        f"{after} after"
    )


def _parts_of_windows(a: Side, b: Side) -> str:
    """What the reader must know if the step is the records', and its parts are the windows'."""
    means = [int(side.parts["total_ns"].sum()) / _steps_of(side) / 1e6 for side in (a, b)]
    return (
        f"parts of the step are those of the recorded windows ({means[0]:,.1f} ms a step before, "
        f"{means[1]:,.1f} ms after), not scaled to the step records"
    )


def _step_change(a: Int64Array, b: Int64Array) -> StepChange:
    first, second = round(float(np.median(a))), round(float(np.median(b)))
    noise = None
    if min(len(a), len(b)) >= LEAST_STEPS:
        noise = noise_of_medians_ns(a, b)
    delta = second - first
    return StepChange(
        first,
        second,
        delta,
        delta / first if first else 0.0,
        noise,
        delta != 0 and (noise is None or abs(delta) > noise),
        len(a),
        len(b),
    )


def _change_of_repeated(runs: RunsChange) -> StepChange:
    first, second = round(runs.a_ns), round(runs.b_ns)
    change = runs.step
    reach = max(change.share - change.low_share, change.high_share - change.share)
    return StepChange(
        first,
        second,
        second - first,
        change.share,
        round(reach * runs.a_ns),
        not change.low_share <= 0 <= change.high_share,
        sum(run.steps for run in runs.a),
        sum(run.steps for run in runs.b),
    )


def _summary(measures: pl.DataFrame, side: Side, prefix: str) -> pl.DataFrame:
    """Per key: count and mean per step, and the square of the mean's standard error, twice."""
    steps = _steps_of(side)
    total = pl.col("total_ns")
    squares = (total.cast(pl.Float64) ** 2).sum()
    mean = total.sum() / steps
    # Steps that lack the key are zeros: they add nothing to either sum, but count in `steps`.
    variance = (squares / steps - mean**2).clip(lower_bound=0.0) * steps / max(1, steps - 1)
    # Sums of doubles depend on their order.
    ordered = measures.sort("key", "step")
    found = ordered.group_by("key", maintain_order=True).agg(
        pl.col("name").first(),
        (pl.col("count").sum() / steps).alias(f"{prefix}_count"),
        mean.round().cast(pl.Int64).alias(f"{prefix}_ns"),
        (variance / steps).alias(f"{prefix}_error2"),
    )
    of_blocks = errors_of_blocks(measures, side.parts["step"])
    of_blocks = of_blocks.rename({"block_error2": f"{prefix}_block_error2"})
    return found.join(of_blocks, on="key", how="left", maintain_order="left")


def _steps_of(side: Side) -> int:
    """Number of steps that the tables of a side are over."""
    return max(1, side.parts["step"].n_unique())


def _match(first: pl.DataFrame, second: pl.DataFrame, a: Side, b: Side, table: str) -> pl.DataFrame:
    ours, theirs = _summary(first, a, "a"), _summary(second, b, "b")
    both = ours.join(theirs, on="key", how="full", coalesce=True, suffix="_b")
    both = both.with_columns(
        name=pl.coalesce("name", "name_b"),
        matched_by=pl.when(pl.col("a_ns").is_not_null() & pl.col("b_ns").is_not_null()).then(
            pl.lit("call path" if table == "operator" else "name")
        ),
        place=pl.col("key") if table == "operator" else pl.lit(None, pl.String),
    )
    return _judge(both, a, b, table)


def _match_operators(a: Side, b: Side) -> pl.DataFrame:
    """By call path first; what has no partner there, by name."""
    first, second = a.operators, b.operators
    by_path = set(first["key"]) & set(second["key"])
    shared = list(by_path)
    paired = _match(
        first.filter(pl.col("key").is_in(shared)),
        second.filter(pl.col("key").is_in(shared)),
        a,
        b,
        "operator",
    )
    rest = [
        side.filter(~pl.col("key").is_in(shared)).with_columns(key=pl.col("name"))
        for side in (first, second)
    ]
    rest = [
        side.group_by("key", "name", "step").agg(pl.col("count").sum(), pl.col("total_ns").sum())
        for side in rest
    ]
    others = _match(rest[0], rest[1], a, b, "operator").with_columns(
        matched_by=pl.when(pl.col("matched_by").is_not_null()).then(pl.lit("name")),
        place=pl.lit(None, pl.String),
    )
    return pl.concat([paired, others])


def _judge(both: pl.DataFrame, a: Side, b: Side, table: str) -> pl.DataFrame:
    is_known = min(_steps_of(a), _steps_of(b)) >= LEAST_STEPS
    of_steps = student_95(max(1, _steps_of(a) + _steps_of(b) - 2)) ** 2
    of_blocks = student_95(BLOCKS - 1) ** 2
    squares = [
        pl.max_horizontal(
            pl.col(f"{side}_error2").fill_null(0.0) * of_steps,
            pl.col(f"{side}_block_error2").fill_null(0.0) * of_blocks,
        )
        for side in ("a", "b")
    ]
    noise = (squares[0] + squares[1]).sqrt().round().cast(pl.Int64)
    delta = pl.col("b_ns").fill_null(0) - pl.col("a_ns").fill_null(0)
    limit = pl.col("noise_ns").fill_null(0)
    return (
        both.with_columns(
            table=pl.lit(table),
            delta_ns=delta,
            noise_ns=noise if is_known else pl.lit(None, pl.Int64),
        )
        .with_columns(
            status=pl.when(pl.col("a_ns").is_null())
            .then(pl.lit("appeared"))
            .when(pl.col("b_ns").is_null())
            .then(pl.lit("disappeared"))
            .when(pl.col("delta_ns") > limit)
            .then(pl.lit("grew"))
            .when(pl.col("delta_ns") < -limit)
            .then(pl.lit("shrank"))
            .otherwise(pl.lit("same")),
            a_ns=pl.col("a_ns").fill_null(0),
            b_ns=pl.col("b_ns").fill_null(0),
            a_count=pl.col("a_count").fill_null(0.0),
            b_count=pl.col("b_count").fill_null(0.0),
        )
        .select(pl.col(name).cast(dtype) for name, dtype in CHANGES.items())
    )


def _by_change(table: pl.DataFrame) -> pl.DataFrame:
    return table.sort(pl.col("delta_ns").abs(), "name", "place", descending=[True, False, False])
