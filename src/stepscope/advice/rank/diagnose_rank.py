"""Diagnoses one rank: reads its window, and puts the result into a summary.

A rank's window is opened, summarised and freed before the next one is opened. How long a rank waits
for others is known only once the arrivals of all ranks have been compared. So there are two passes:
`read_compared_rank` reads what the comparison needs, and `summarise_rank` does the rest, given the
waits that the comparison found. Without them it diagnoses the rank by itself. Small traces may stay
in memory between the two (`opened_traces`).

A file that is cut off may lack work of any step (`Trace.lacks_end`), so neither what the GPU did
nor what a fix saves follows from it. A window with such a file is taken only if no other can be
read, and then only for how long its steps take on the host.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

from stepscope.advice.rank.opened_traces import OpenedTraces
from stepscope.advice.rank.summary import ComparedRank, RankSummary, Request, Waits
from stepscope.analysis.record.compared_steps import ComparedSteps
from stepscope.analysis.record.metrics import summarise_metrics
from stepscope.analysis.record.summary import summarise_steps
from stepscope.analysis.selection.scope import Scope
from stepscope.errors import StepscopeError, UsageError
from stepscope.opening.reader import RankRun, Window
from stepscope.trace.load import load


def read_compared_rank(
    rank: RankRun, asked: Scope, opened: OpenedTraces | None = None
) -> ComparedRank:
    """Read what the comparison of a rank with others needs, and free its tables.

    What cannot be read is left out here: `summarise_rank` reports why.

    Args:
        opened: Keeps its trace for `summarise_rank` if there is room; None: it is freed.
    """
    opened = opened or OpenedTraces(0)
    rank = replace(rank)  # A copy, so that what it caches is freed on return.
    compared = _without_window(rank)
    from stepscope.advice.rank.compared_rank import with_window
    from stepscope.analysis.blame.lanes import read_pieces

    for window in reversed(rank.windows):
        if window.trace_path is None:
            continue
        try:
            with opened.open_and_keep(window.trace_path, load) as trace:
                if not trace.lacks_end:
                    compared = with_window(compared, window, trace, asked)
                    if compared.arrivals is None:
                        return compared
                    return replace(compared, pieces=read_pieces(trace, Scope(events=asked.events)))
        except StepscopeError:
            continue
    return compared


def _without_window(rank: RankRun) -> ComparedRank:
    manifest = rank.manifest
    if manifest is not None:
        manifest = replace(manifest, windows=(), problems=(), snapshots=(), artifacts=())
    return ComparedRank(rank.rank, manifest, ComparedSteps.of(rank.steps))


def summarise_rank(
    rank: RankRun,
    request: Request,
    waits: Waits | None = None,
    compared: ComparedRank | None = None,
    opened: OpenedTraces | None = None,
) -> RankSummary:
    """Diagnose a rank by its last readable window, and free its tables.

    Args:
        compared: The result of `read_compared_rank` for the same scope; None: there is no
            comparison.
        opened: What `read_compared_rank` has kept.
    """
    rank = replace(rank)
    opened = opened or OpenedTraces(0)
    alone = RankSummary(
        rank=rank.rank,
        steps=None if request.scope.steps is not None else summarise_steps(rank.steps),
        windows=len(rank.windows),
        compared=compared or _without_window(rank),
    )
    # Messages only: an exception would keep the tables of the frames that it passed alive.
    notes = list(rank.step_problems)
    without_steps: list[str] = []

    def diagnosed_by(window: Window) -> RankSummary | None:
        """The summary by one of its windows; None if that window cannot be judged."""
        if window.trace_path is None:
            return None
        try:
            trace = opened.take_or_open(window.trace_path, load)
        except StepscopeError as error:
            notes.append(str(error))
            return None
        from stepscope.advice.rank.diagnose_window import WindowDiagnosis
        from stepscope.analysis.selection.gpu_work import gpu_work

        with closing(trace):
            try:
                gpu_work(trace, request.scope)
            except UsageError as error:
                without_steps.append(str(error))  # another window may have these steps
                return None
            diagnosis = WindowDiagnosis(rank, window, trace, alone, request, waits, notes)
            return diagnosis.host_steps() if trace.lacks_end else diagnosis.diagnose()

    cut_off: RankSummary | None = None
    # The last window is the farthest from the start, when nothing is warming up any more.
    for window in reversed(rank.windows):
        diagnosed = diagnosed_by(window)
        if diagnosed is not None and not diagnosed.is_cut_off:
            return _with_metrics(diagnosed, rank)
        cut_off = cut_off or diagnosed
    if cut_off is not None:
        return _with_metrics(cut_off, rank)
    if without_steps:
        raise UsageError(without_steps[0])
    from stepscope.advice.rank.findings import subject_of, with_findings

    subject = subject_of(rank, alone, request, None, notes)
    alone = replace(alone, notes=tuple(notes))
    return _with_metrics(with_findings(alone, subject), rank)


def _with_metrics(summary: RankSummary, rank: RankRun) -> RankSummary:
    if rank.metrics_path is None:
        return summary
    try:
        return replace(summary, metrics=summarise_metrics(rank.metrics_path))
    except StepscopeError as error:
        return replace(summary, notes=(*summary.notes, str(error)))
