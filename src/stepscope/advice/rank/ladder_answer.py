"""The ladder (`ladder`) as the answer to a question about one trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import polars as pl

from stepscope.advice.rank.diagnose_rank import summarise_rank
from stepscope.advice.rank.opened_traces import OpenedTraces
from stepscope.advice.rank.summary import RankSummary, Request
from stepscope.analysis.critical_path import what_steps_depend_on
from stepscope.analysis.selection.scope import AnsweredScope, RecordedSteps, Scope
from stepscope.opening.reader import RankRun, Window, open_run
from stepscope.trace.model import Trace

RUNGS: dict[str, pl.DataType | type[pl.DataType]] = {
    "rung": pl.String,  # what is fixed: a finding; else today, others, device, precision, host
    "step_ns": pl.Int64,  # with all of this and the rungs before
    "step_share": pl.Float64,  # of today's step
    "limit": pl.String,  # of the step then
    "limit_share": pl.Float64,  # of the step; null: not known, or the floor
    "fixed": pl.String,  # in words
    "basis": pl.String,  # how the step is known
}


@dataclass(frozen=True)
class LadderAnswer:
    """The step after each fix, down to the floor.

    Attributes:
        next_limit: What limits the step once its first finding is fixed, in one sentence.
        step_ns: Today's step; None if there is a reason for no ladder, which the notes give.
        rungs: Columns `RUNGS`, from today's step down.
        notes: What it rests on, and what is missing for more.
    """

    next_limit: str | None = field(metadata={"label": "next limit"})
    step_ns: int | None
    floor_ns: int | None
    rungs: pl.DataFrame
    scope: AnsweredScope
    notes: tuple[str, ...]


def ladder_of(
    trace: Trace, scope: Scope | None = None, step_record: Path | None = None
) -> LadderAnswer:
    """The ladder of the findings about one trace, as the report on it has them.

    Args:
        scope: Which consecutive steps; devices and the choice of events have no influence.
        step_record: The `steps.jsonl` of the rank that recorded it; None for a trace outside a run.
    """
    asked = Scope(steps=None if scope is None else scope.steps)
    rank = _rank_of(trace, step_record)
    summary = summarise_rank(rank, Request(asked), opened=_Opened(trace))
    ladder = summary.ladder
    rungs = pl.DataFrame(
        [
            (
                rung.id,
                rung.step_ns,
                rung.step_ns / max(1, ladder.rungs[0].step_ns),
                rung.limit,
                rung.limit_share,
                rung.fixed,
                rung.basis,
            )
            for rung in ladder.rungs
        ],
        schema=RUNGS,
        orient="row",
    )
    reason = () if ladder.rungs else (ladder.reason,)
    notes = (*reason, *ladder.rests_on, *ladder.missing, *summary.notes)
    return LadderAnswer(
        next_limit=ladder.next_limit or None,
        step_ns=ladder.rungs[0].step_ns if ladder.rungs else None,
        floor_ns=ladder.floor_ns,
        rungs=rungs,
        scope=_scope_of(summary, asked),
        notes=(*notes, *what_steps_depend_on(scope or Scope())),
    )


class _Opened(OpenedTraces):
    def __init__(self, trace: Trace) -> None:
        super().__init__(0)
        self._trace = trace

    def take_or_open(self, _path: Path, _load: Callable[[Path], Trace]) -> Trace:
        return self._trace


def _rank_of(trace: Trace, step_record: Path | None) -> RankRun:
    """The rank that recorded a trace, with this window alone."""
    path = Path(trace.path)
    if step_record is not None:
        for rank in open_run(step_record.parent.parent).ranks:
            if rank.directory == step_record.parent:
                mine = tuple(one for one in rank.windows if one.trace_path == path)
                return replace(rank, windows=mine[-1:] or rank.windows[-1:])
    return RankRun(0, path.parent, None, (Window(0, 0, path),))


def _scope_of(summary: RankSummary, asked: Scope) -> AnsweredScope:
    events = 0 if summary.scope is None else summary.scope.events
    scope = AnsweredScope(asked, summary.window_steps, (), events=events)
    record = summary.steps
    if record is None or asked.steps is not None:
        return scope
    both = RecordedSteps(summary.window_step_ns, record.mean_ns, len(record.steps), True)
    return replace(scope, recorded=both)
