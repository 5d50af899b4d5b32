"""Judges one rank: reads its window, and puts what it says into a summary.

A rank's window is opened, summarised and freed before the next one is opened. How long a rank waits
for others is known only once the arrivals of all ranks have been compared. So each rank is asked
twice: `meeting_of` reads what the comparison needs, and `summarise_rank` does the rest, given the
waits that the comparison found. Without them it judges the rank by itself. Small traces may stay in
memory between the two (`opened_traces`).

A file that is cut off may lack work of any step (`Trace.lacks_end`), so neither what the GPU did
nor what a fix saves follows from it. A window with such a file is taken only if no other can be
read, and then only for how long its steps take on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

from stepscope.advice.rank.opened_traces import OpenedTraces
from stepscope.advice.rank.summary import Meeting, RankSummary, Request, Waits
from stepscope.analysis.record.meetings import MeetingSteps
from stepscope.analysis.record.metrics import summarise_metrics
from stepscope.analysis.record.summary import StepSummary, summarise_steps
from stepscope.analysis.selection.scope import Scope
from stepscope.errors import StepscopeError, UsageError
from stepscope.run.reader import RankRun, Window
from stepscope.trace.load import load
from stepscope.trace.model import Trace


def meeting_of(rank: RankRun, asked: Scope, opened: OpenedTraces | None = None) -> Meeting:
    """Read what the comparison of a rank with others needs, and free its tables.

    What cannot be read is left out here: `summarise_rank` reports why.

    Args:
        opened: Keeps its trace for `summarise_rank` if there is room; None: it is freed.
    """
    opened = opened or OpenedTraces(0)
    rank = replace(rank)  # A copy, so that what it caches is freed on return.
    meeting = _meeting_without_window(rank)
    from stepscope.advice.rank.meeting import with_window
    from stepscope.analysis.blame.lanes import read_pieces

    for window in reversed(rank.windows):
        if window.trace_path is None:
            continue
        try:
            with opened.open_and_keep(window.trace_path, load) as trace:
                if not trace.lacks_end:
                    meeting = with_window(meeting, window, trace, asked)
                    if meeting.arrivals is None:
                        return meeting
                    return replace(meeting, pieces=read_pieces(trace, Scope(events=asked.events)))
        except StepscopeError:
            continue
    return meeting


def _meeting_without_window(rank: RankRun) -> Meeting:
    manifest = rank.manifest
    if manifest is not None:
        manifest = replace(manifest, windows=(), problems=(), snapshots=(), artifacts=())
    return Meeting(rank.rank, manifest, MeetingSteps.of(rank.steps))


def summarise_rank(
    rank: RankRun,
    request: Request,
    waits: Waits | None = None,
    met: Meeting | None = None,
    opened: OpenedTraces | None = None,
) -> RankSummary:
    """Judge a rank by its last readable window, and free its tables.

    Args:
        met: The result of `meeting_of` for the same scope; None: there is nothing to compare with.
        opened: What `meeting_of` has kept.
    """
    rank = replace(rank)
    opened = opened or OpenedTraces(0)
    record = None if request.scope.steps is not None else summarise_steps(rank.steps)
    alone = _without_window(rank, record, met)
    trouble = _Trouble(list(rank.step_problems))
    cut_off: RankSummary | None = None
    # The last window is the farthest from the start, when nothing is warming up any more.
    for window in reversed(rank.windows):
        if window.trace_path is None:
            continue
        open_trace = partial(opened.take_or_open, window.trace_path, load)
        judged = _judge(rank, window, open_trace, alone, request, waits, trouble)
        if judged is not None and not judged.is_cut_off:
            return _with_metrics(judged, rank)
        cut_off = cut_off or judged
    if cut_off is not None:
        return _with_metrics(cut_off, rank)
    if trouble.not_there is not None:
        raise UsageError(trouble.not_there)
    from stepscope.advice.rank.findings import subject_of, with_findings

    subject = subject_of(rank, alone, request, None, trouble.notes)
    alone = replace(alone, notes=tuple(trouble.notes))
    return _with_metrics(with_findings(alone, subject), rank)


@dataclass
class _Trouble:
    """Why windows of a rank could not be read.

    Messages only: an exception would keep the tables of the frames that it passed alive.
    """

    notes: list[str]
    not_there: str | None = None


def _without_window(rank: RankRun, record: StepSummary | None, met: Meeting | None) -> RankSummary:
    """What is known about a rank before any window is opened."""
    return RankSummary(
        rank=rank.rank,
        steps=record,
        windows=len(rank.windows),
        meeting=met or _meeting_without_window(rank),
    )


def _judge(
    rank: RankRun,
    window: Window,
    open_trace: Callable[[], Trace],
    alone: RankSummary,
    request: Request,
    waits: Waits | None,
    trouble: _Trouble,
) -> RankSummary | None:
    """The summary of a rank by one of its windows; None if that window cannot be judged."""
    try:
        trace = open_trace()
    except StepscopeError as error:
        trouble.notes.append(str(error))
        return None
    from stepscope.advice.rank.window_judging import WindowJudge
    from stepscope.analysis.selection.gpu_work import gpu_work

    with closing(trace):
        try:
            gpu_work(trace, request.scope)
        except UsageError as error:
            # Another window may have these steps.
            trouble.not_there = trouble.not_there or str(error)
            return None
        judge = WindowJudge(rank, window, trace, alone, request, waits, trouble.notes)
        return judge.host_steps() if trace.lacks_end else judge.judge()


def _with_metrics(summary: RankSummary, rank: RankRun) -> RankSummary:
    if rank.metrics_path is None:
        return summary
    try:
        return replace(summary, metrics=summarise_metrics(rank.metrics_path))
    except StepscopeError as error:
        return replace(summary, notes=(*summary.notes, str(error)))
