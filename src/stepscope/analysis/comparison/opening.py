"""Opens one side of a comparison: a rank's step record and its last window."""

from __future__ import annotations

from dataclasses import replace

from stepscope.analysis.comparison.side import Side, make_side
from stepscope.analysis.record.summary import summarise_steps
from stepscope.analysis.selection.scope import Scope
from stepscope.run.remote import as_shown
from stepscope.run.step_record import StepRecord
from stepscope.trace.paths import PathTarget, remark_on


def open_side(target: PathTarget, rank: int | None, scope: Scope) -> Side:
    """Open one side.

    Args:
        target: What a path from the user stands for; see `stepscope.trace.paths`.
        rank: The rank; None: the first.
        scope: Steps, devices and GPU events that count. With steps, the step record is not used.

    Raises:
        UnreadableInputError: There is nothing to read, or it cannot be read.
        UsageError: There is no such rank, or nothing in it to compare.
    """
    chosen = target.rank(rank)
    last = chosen.last_with(scope.steps)
    trace = None if last is None else last.open()
    records: tuple[StepRecord, ...] = ()
    if chosen.record is not None and scope.steps is None:
        records = chosen.record.steps
    side = make_side(as_shown(target.path), trace, records, summarise_steps(records), scope)
    if rank is None and (said := remark_on(target)):
        # A note begins with the side it is about.
        return replace(side, notes=(said.removeprefix(f"{target.path}: "), *side.notes))
    ranks = len(target.chosen)
    if rank is not None or ranks < 2:
        return side
    alone = f"rank {chosen.rank} of {ranks} ranks is compared; --rank chooses another"
    return replace(side, notes=(alone, *side.notes))
