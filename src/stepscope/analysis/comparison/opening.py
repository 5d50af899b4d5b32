"""Opens the sides of a comparison: of each run a rank's step record and its last window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from stepscope.analysis.comparison.compare import Comparison, compare
from stepscope.analysis.comparison.side import Side, make_side
from stepscope.analysis.record.summary import summarise_steps
from stepscope.analysis.selection.scope import Scope
from stepscope.errors import UnreadableInputError
from stepscope.run.layout import RUN_FILE
from stepscope.run.manifest import JobRecord
from stepscope.run.reader import open_run
from stepscope.run.remote import as_shown
from stepscope.run.step_record import StepRecord
from stepscope.trace.paths import PathTarget, remark_on

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
    side = make_side(as_shown(target.path), trace, records, summarise_steps(records), scope)
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
