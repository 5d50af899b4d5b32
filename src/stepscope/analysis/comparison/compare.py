"""What changed between two runs or traces, and whether it is more than noise.

Definitions
    The step's change, its noise, and whether it changed are judged by runs (`repeated_runs`): the
    steps of one run do not show by how much another run of the same program differs. With one run a
    side, the noise is known only where earlier runs of the job show it.
    Parts come from the step records of both sides where they tell parts, else from the windows. On
    GPUs, records tell the training thread's parts, and the windows those of the GPUs' steps, as
    they were recorded: both are compared, in tables of their own.
    Parts, kernels and operators are compared by their means per step, over the runs of each side,
    so that parts add up to the mean step; a step or a run that lacks a kernel counts as 0. Their
    noise is the 95% interval of a difference of means, over runs; with one run a side it is not
    known.
    Kernels are matched by name; operators by the path of operators that leads to them, and what
    finds no partner so, by name alone.

Status
    appeared, disappeared: on one side only. grew, shrank: beyond the noise. same: within it. Where
    the noise is not known, what changed by less than a thousandth of the step is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from stepscope.analysis.comparison.repeated_runs import (
    ASSUMED,
    RunsChange,
    change_of_runs,
    noise_of_means,
    values_of,
)
from stepscope.analysis.comparison.side import MEASURES, RECORD_BASIS, Side, make_side
from stepscope.analysis.record.summary import summarise_steps, without_own_time
from stepscope.analysis.selection.scope import Scope
from stepscope.errors import UnreadableInputError
from stepscope.opening.reader import open_run
from stepscope.opening.remote import as_shown
from stepscope.run.figures import percent
from stepscope.run.layout import RUN_FILE
from stepscope.run.manifest import JobRecord
from stepscope.run.step_record import StepRecord
from stepscope.trace.paths import PathTarget, remark_on

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
_NOTABLE_CHANGE = 0.001
"""Share of the step below which a change counts as none, where the noise is not known."""
_LEAST_ALIKE = 0.25
"""Of the work of two sides, what has the same names where they are one program."""
PART, THREAD_PART = "part", "thread_part"
"""Tables that divide a step: the compared steps, and on GPUs also the training thread's."""


@dataclass(frozen=True)
class StepChange:
    """The step of both sides.

    Attributes:
        delta_ns: What the second takes more.
        change_share: That, as a share of the first.
        noise_ns: By how much medians of such runs differ by chance; None: not known.
        is_beyond_noise: Whether the change is larger; also where the noise is not known.
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
        changes: One row per part, kernel and operator, columns `CHANGES`; parts in their order,
            the others by the size of their change.
        differences: What else differs between the sides (GPUs, number of ranks, kind of step), or
            disturbed them (busy CPUs), so that not every change need come from the code.
    """

    a: Side
    b: Side
    step: StepChange
    changes: pl.DataFrame
    differences: tuple[str, ...]
    notes: tuple[str, ...]
    runs: RunsChange


def compare(
    before: Side | Sequence[Side],
    after: Side | Sequence[Side],
    *,
    earlier_ns: Sequence[Sequence[float]] = (),
    in_rounds: bool = False,
) -> Comparison:
    """Compare two versions, the second against the first.

    Args:
        earlier_ns: Groups of medians of earlier runs; see `change_of_runs`.
        in_rounds: Whether runs at one place of both sides took turns.
    """
    sides = [[one] if isinstance(one, Side) else list(one) for one in (before, after)]
    values = [[values_of(run) for run in side] for side in sides]
    runs = change_of_runs(values[0], values[1], earlier_ns, in_rounds=in_rounds)
    a, b = (_nearest(side, ns) for side, ns in zip(sides, (runs.a_ns, runs.b_ns), strict=True))
    notes = [*(f"{a.path}: {note}" for note in a.notes), *(f"{b.path}: {n}" for n in b.notes)]
    differences = [
        f"the {what} differ: {ours} before, {theirs} after"
        for what, ours, theirs in (
            ("GPUs", a.gpus, b.gpus),
            ("machines", a.machine, b.machine),
            ("jobs", a.ranks, b.ranks),
        )
        if ours and theirs and ours != theirs
    ]
    if a.basis != b.basis:
        differences.append(f"the kinds of step differ: {a.basis} before, {b.basis} after")
    if waits := _waits_for_cpus(a, b):
        differences.append(waits)
    pieces = [pl.DataFrame(schema=CHANGES)]
    # Records hold many steps, and not slowed ones; a window holds a few.
    records_tell = len(a.record_parts) > 0 and len(b.record_parts) > 0
    of_gpus = a.is_of_gpus and b.is_of_gpus
    by_record = [[run.by_record for run in side] for side in sides]
    uses_records = records_tell and not of_gpus
    ours, theirs = (a.by_record, b.by_record) if uses_records else (a, b)
    chosen = by_record if uses_records else sides
    if ours.parts_basis == theirs.parts_basis:
        pieces.append(_parts(_alike(chosen, ours), PART))
        if RECORD_BASIS in (a.basis, b.basis) and ours.parts_basis != RECORD_BASIS:
            notes.append(_parts_of_windows(ours, theirs))
    else:
        notes.append(f"parts cannot be compared: {ours.parts_basis} against {theirs.parts_basis}")
    if records_tell and of_gpus:
        pieces.append(_parts(_alike(by_record, a.by_record), THREAD_PART))
    recorded = [[run for run in side if run.scope is not None] for side in sides]
    if all(recorded):
        kernels = [[(run.kernels, run) for run in side] for side in recorded]
        pieces.append(_by_change(_match(kernels, "kernel")))
        first, second = (side[0].operators_basis for side in recorded)
        if first == second:
            alike = [[run for run in side if run.operators_basis == first] for side in recorded]
            pieces.append(_by_change(_match_operators(alike)))
        else:
            notes.append(f"operators cannot be compared: {first} against {second}")
    elif any(recorded):
        notes.append("kernels and operators cannot be compared: a side has no recorded window")
    if runs.is_repeated:
        notes.append(f"steps and scopes are those of one run of each side: {a.path} and {b.path}")
    changes = pl.concat(pieces)
    alike_share = _alike_share(changes)
    if alike_share is not None and alike_share < _LEAST_ALIKE:
        differences.insert(
            0,
            f"these may be different programs: only {percent(alike_share)} of their work has the "
            "same names",
        )
    return Comparison(
        ours,
        theirs,
        _step_change(runs),
        changes,
        tuple(differences),
        tuple(notes),
        runs,
    )


def _alike_share(changes: pl.DataFrame) -> float | None:
    """How alike the work of both sides is: the shares of each name that both have, added up.

    Of kernels or of operators, whichever are more alike: another GPU has other kernels for the same
    operators. Ranges, such as the wait for a loader, are no operators: a program may spend most of
    its time in one, and lose it. None where nothing was recorded.
    """
    found = []
    is_range = (pl.col("table") == "operator") & ~pl.col("name").str.contains("::", literal=True)
    for table in ("kernel", "operator"):
        mine = (
            changes.filter((pl.col("table") == table) & ~is_range)
            .group_by("name")
            .agg(pl.col("a_ns", "b_ns").sum())
        )
        totals = [int(mine[column].sum()) for column in ("a_ns", "b_ns")]
        if all(totals):
            shared = mine.select(
                pl.min_horizontal(pl.col("a_ns") / totals[0], pl.col("b_ns") / totals[1])
            )
            found.append(float(shared.to_series().sum()))
    return max(found, default=None)


def _nearest(side: Sequence[Side], middle_ns: float) -> Side:
    return min(side, key=lambda run: abs(values_of(run).median_ns - middle_ns))


def _alike(sides: Sequence[Sequence[Side]], one: Side) -> list[list[Side]]:
    """The runs whose parts divide the same."""
    basis = one.parts_basis
    return [[run for run in side if run.parts_basis == basis and len(run.parts)] for side in sides]


def _parts(sides: Sequence[Sequence[Side]], table: str) -> pl.DataFrame:
    changes = _match([[(run.parts, run) for run in side] for side in sides], table)
    order = pl.concat([run.parts["name"] for side in sides for run in side])
    known = changes.filter((pl.col("a_ns") > 0) | (pl.col("b_ns") > 0))
    in_order = order.unique(maintain_order=True).to_frame()
    return in_order.join(known, on="name", maintain_order="left").select(list(CHANGES))


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


def _step_change(runs: RunsChange) -> StepChange:
    first, second = round(runs.a_ns), round(runs.b_ns)
    change, noise = runs.step, None
    is_beyond = first != second
    if runs.basis != ASSUMED:
        reach = max(change.share - change.low_share, change.high_share - change.share)
        noise = round(reach * runs.a_ns)
        is_beyond = not change.low_share <= 0 <= change.high_share
    return StepChange(
        first,
        second,
        second - first,
        change.share,
        noise,
        is_beyond,
        sum(run.steps for run in runs.a),
        sum(run.steps for run in runs.b),
    )


_Measured = Sequence[Sequence[tuple[pl.DataFrame, Side]]]
"""Of each side and each of its runs, columns `MEASURES` and the run."""


def _summary(runs: Sequence[tuple[pl.DataFrame, Side]], prefix: str) -> pl.DataFrame:
    """Per key: its name, count and mean per step over the runs, and the means of the runs."""
    means = [
        # A step that lacks the key adds nothing, but counts.
        measures.group_by("key", maintain_order=True).agg(
            pl.col("name").first(),
            (pl.col("count").sum() / _steps_of(run)).alias("count"),
            (pl.col("total_ns").sum() / _steps_of(run)).alias("mean_ns"),
        )
        for measures, run in runs
    ]
    empty = pl.DataFrame(
        schema={"key": pl.String, "name": pl.String, "count": pl.Float64, "mean_ns": pl.Float64}
    )
    number = max(1, len(runs))
    found = pl.concat([empty, *means]).group_by("key", maintain_order=True)
    return found.agg(
        pl.col("name").first(),
        (pl.col("count").sum() / number).alias(f"{prefix}_count"),
        (pl.col("mean_ns").sum() / number).alias(f"{prefix}_mean_ns"),
        pl.col("mean_ns").alias(f"{prefix}_runs"),
    )


def _steps_of(side: Side) -> int:
    return max(1, side.parts["step"].n_unique())


def _match(sides: _Measured, table: str) -> pl.DataFrame:
    ours, theirs = (_summary(side, name) for side, name in zip(sides, "ab", strict=True))
    both = ours.join(theirs, on="key", how="full", coalesce=True, suffix="_b")
    step_ns = [
        sum(float(run.step_ns.mean()) for _, run in side) / max(1, len(side)) for side in sides
    ]
    mean = [pl.col(f"{side}_mean_ns").fill_null(0.0).round().cast(pl.Int64) for side in "ab"]
    is_here = [pl.col(f"{side}_mean_ns").is_not_null() for side in "ab"]
    noise = pl.Series("noise_ns", _noise_of(both, sides), pl.Int64)
    limit = pl.col("noise_ns").fill_null(round(_NOTABLE_CHANGE * max(step_ns)))
    return (
        both.with_columns(
            noise,
            table=pl.lit(table),
            name=pl.coalesce("name", "name_b"),
            matched_by=pl.when(*is_here).then(
                pl.lit("call path" if table == "operator" else "name")
            ),
            place=pl.col("key") if table == "operator" else pl.lit(None, pl.String),
            a_ns=mean[0],
            b_ns=mean[1],
            delta_ns=mean[1] - mean[0],
            a_count=pl.col("a_count").fill_null(0.0),
            b_count=pl.col("b_count").fill_null(0.0),
        )
        .with_columns(
            status=pl.when(~is_here[0])
            .then(pl.lit("appeared"))
            .when(~is_here[1])
            .then(pl.lit("disappeared"))
            .when(pl.col("delta_ns") > limit)
            .then(pl.lit("grew"))
            .when(pl.col("delta_ns") < -limit)
            .then(pl.lit("shrank"))
            .otherwise(pl.lit("same")),
        )
        .select(pl.col(name).cast(dtype) for name, dtype in CHANGES.items())
    )


def _noise_of(both: pl.DataFrame, sides: _Measured) -> list[int | None]:
    """Of each row the noise of its change; a run that lacks a key took no time for it."""
    if max(map(len, sides)) < 2:
        return [None] * len(both)
    found: list[int | None] = []
    for row in both.select("a_runs", "b_runs").iter_rows():
        means = [
            [*(known or ()), *[0.0] * (len(side) - len(known or ()))]
            for known, side in zip(row, sides, strict=True)
        ]
        noise = noise_of_means(means[0], means[1])
        found.append(None if noise is None else round(noise))
    return found


def _match_operators(sides: Sequence[Sequence[Side]]) -> pl.DataFrame:
    """By call path first; what has no partner there, by name."""
    keys = [{key for run in side for key in run.operators["key"]} for side in sides]
    shared = pl.col("key").is_in(list(keys[0] & keys[1]))
    paired = _match([[(r.operators.filter(shared), r) for r in side] for side in sides], "operator")

    def by_name(run: Side) -> pl.DataFrame:
        rest = run.operators.filter(~shared).with_columns(key=pl.col("name"))
        sums = (pl.col("count").sum(), pl.col("total_ns").sum())
        return rest.group_by("key", "name", "step").agg(*sums).select(list(MEASURES)).sort("key")

    others = _match([[(by_name(r), r) for r in side] for side in sides], "operator").with_columns(
        matched_by=pl.when(pl.col("matched_by").is_not_null()).then(pl.lit("name")),
        place=pl.lit(None, pl.String),
    )
    return pl.concat([paired, others])


def _by_change(table: pl.DataFrame) -> pl.DataFrame:
    return table.sort(pl.col("delta_ns").abs(), "name", "place", descending=[True, False, False])


_MOST_EARLIER, _MOST_OPENED = 20, 100


def compare_runs(
    before: Sequence[PathTarget],
    after: Sequence[PathTarget],
    rank: int | None,
    scope: Scope,
    *,
    is_judged: bool = False,
    in_rounds: bool = False,
) -> Comparison:
    """Compare two versions by one run of each, or by several.

    Args:
        is_judged: Whether conditions are judged. Then, with one run of each version, earlier runs
            beside them are looked for.
        in_rounds: Whether runs at one place of both sides took turns (`trial.alternation`).
    """
    sides = [[open_side(target, rank, scope) for target in side] for side in (before, after)]
    earlier = []
    if is_judged and max(map(len, sides)) == 1 and scope.steps is None:
        paths = {target.run.path.resolve() for target in (*before, *after) if target.is_run}
        found = {_job_of(one): _earlier_medians_ns(one, rank, paths) for one in (*before, *after)}
        earlier = list(found.values())
    return compare(*sides, earlier_ns=earlier, in_rounds=in_rounds)


def _job_of(target: PathTarget) -> tuple[Path, tuple[str, ...], int, str] | None:
    """What makes runs in one folder runs of the same job; None of what is not such a run."""
    if not target.is_run or "://" in target.path:
        return None
    run = target.run
    if run.job is None or not run.job.command:
        return None
    return (run.path.resolve().parent, *_identity(run.job))


def _identity(job: JobRecord) -> tuple[tuple[str, ...], int, str]:
    return job.command, job.world_size, job.host


def _earlier_medians_ns(target: PathTarget, rank: int | None, others: set[Path]) -> list[float]:
    """Median steps of earlier runs of the same job beside a run, the newest first."""
    job = _job_of(target)
    if job is None:
        return []
    created_ns = target.run.job.created_ns if target.run.job is not None else 0
    files = sorted(job[0].glob(f"*/{RUN_FILE}"), key=_changed_ns, reverse=True)
    found: list[float] = []
    for path in (file.parent for file in files[:_MOST_OPENED]):
        if path.resolve() in others:
            continue
        try:
            run = open_run(path)
            if run.job is None or (job[0], *_identity(run.job)) != job:
                continue
            ranks = [one for one in run.ranks if rank in (None, one.rank)]
            summary = summarise_steps(ranks[0].steps) if ranks else None
        except UnreadableInputError:
            continue
        if summary is not None and run.job.created_ns <= created_ns:
            found.append(float(summary.median_ns))
        if len(found) == _MOST_EARLIER:
            break
    return found


def _changed_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def open_side(target: PathTarget, rank: int | None, scope: Scope) -> Side:
    """Open one side. With steps in the scope, the step record is not used."""
    chosen = target.rank(rank)
    last = chosen.last_with(scope.steps)
    trace = None if last is None else last.open()
    records: tuple[StepRecord, ...] = ()
    if chosen.record is not None and scope.steps is None:
        records = chosen.record.steps
    summary = summarise_steps(records)
    side = make_side(as_shown(target.path), trace, without_own_time(records), summary, scope)
    if target.is_run and target.run.job is not None:
        side = replace(side, machine=target.run.job.host)
    if rank is None and (said := remark_on(target)):
        # A note begins with the side it is about.
        return replace(side, notes=(said.removeprefix(f"{target.path}: "), *side.notes))
    ranks = len(target.chosen)
    if rank is not None or ranks < 2:
        return side
    alone = f"rank {chosen.rank} of {ranks} ranks is compared; --rank chooses another"
    return replace(side, notes=(alone, *side.notes))
