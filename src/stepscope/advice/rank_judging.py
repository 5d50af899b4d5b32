"""Judges one rank: reads its window, and puts what it says into a summary.

A rank's window is opened, summarised and freed before the next one is opened. How long a rank waits
for others is known only once the arrivals of all ranks have been compared. So each rank is read
twice: `meeting_of` reads what the comparison needs, and `summarise_rank` does the rest, given the
waits that the comparison found. Without them it judges the rank by itself.

A file that is cut off may lack work of any step (`Trace.lacks_end`), so neither what the GPU did
nor what a fix saves can be told from it. A window with such a file is taken only if no other can be
read, and then only for how long its steps take on the host.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stepscope.advice.collectives import cost_of_waits, waited_in, without_waits
from stepscope.advice.compute_summary import summarise_compute
from stepscope.advice.finding import Finding, of_whole_file
from stepscope.advice.point_to_point import point_to_point
from stepscope.advice.rank_summary import HostSummary, Meeting, RankSummary, Request, Waits
from stepscope.advice.replayed import saved_together
from stepscope.advice.rules import RULES, rules_of_a_rank
from stepscope.advice.subject import Subject
from stepscope.advice.window_view import WindowView
from stepscope.analysis.breakdown import Breakdown, break_down_devices, host_scope
from stepscope.analysis.calls.allocations import memory_events
from stepscope.analysis.calls.collectives import read_collectives
from stepscope.analysis.calls.operands_of_work import operands_of_all_work
from stepscope.analysis.calls.recomputation import find_recomputed, may_read_arguments
from stepscope.analysis.graph.changes import Changes
from stepscope.analysis.graph.replay import replay
from stepscope.analysis.graph.window import choose_steps
from stepscope.analysis.host.partition import HostPartition, partition_host
from stepscope.analysis.host.steady_steps import steady_steps, steps_on_end
from stepscope.analysis.ranks.arrivals import read_arrivals
from stepscope.analysis.record.meetings import MeetingSteps
from stepscope.analysis.record.metrics import summarise_metrics
from stepscope.analysis.record.summary import StepSummary, summarise_steps
from stepscope.analysis.selection.gpu_work import gpu_work, recorded_work
from stepscope.analysis.selection.rows import Rows
from stepscope.analysis.selection.scope import Scope
from stepscope.errors import StepscopeError, UsageError
from stepscope.run.manifest import LoaderRecord
from stepscope.run.reader import RankRun, Window
from stepscope.run.working import working
from stepscope.trace.arrays.memory_reuse import return_freed_memory
from stepscope.trace.load import load
from stepscope.trace.model import Trace
from stepscope.trace.second_thread import PAYS_FROM_EVENTS, SecondThread, second_thread

if TYPE_CHECKING:
    from stepscope.memory.view import MemoryView


def meeting_of(rank: RankRun, asked: Scope) -> Meeting:
    """Read what the comparison of a rank with others needs, and free its tables.

    What cannot be read is left out here: `summarise_rank` reports why.
    """
    rank = replace(rank)  # A copy, so that what it caches is freed on return.
    meeting = _meeting_without_window(rank)
    for window in reversed(rank.windows):
        if window.trace_path is None:
            continue
        try:
            trace = load(window.trace_path)
            if not trace.lacks_end:
                return _with_window(meeting, window, trace, asked)
        except StepscopeError:
            continue
    return meeting


def _meeting_without_window(rank: RankRun) -> Meeting:
    manifest = rank.manifest
    if manifest is not None:
        manifest = replace(manifest, windows=(), problems=(), snapshots=(), artifacts=())
    return Meeting(rank.rank, manifest, MeetingSteps.of(rank.steps))


def _with_window(meeting: Meeting, window: Window, trace: Trace, asked: Scope) -> Meeting:
    gpu_work(trace, asked)  # raises where the scope names what the trace does not have
    chosen, _ = choose_steps(trace, asked.steps)
    steps = tuple(chosen["step"].to_list())
    work = gpu_work(trace, replace(asked, steps=steps or None))
    arrivals = None
    if work.in_steps.any():
        arrivals = read_arrivals(meeting.rank, trace, Scope(events=asked.events))
    all_steps = steps if asked.steps is not None else steps_on_end(trace)
    return replace(
        meeting,
        window=window.index,
        window_steps=steps,
        all_steps=all_steps,
        arrivals=arrivals,
    )


def summarise_rank(
    rank: RankRun, request: Request, waits: Waits | None = None, met: Meeting | None = None
) -> RankSummary:
    """Judge a rank by its last readable window, and free its tables.

    Args:
        rank: The rank.
        request: What is asked of it.
        waits: How long it waited for others in its collectives; None: unknown.
        met: The result of `meeting_of` for the same scope; None: it is read here.

    Raises:
        UsageError: The scope names what none of its traces has.
    """
    rank = replace(rank)
    record = None if request.scope.steps is not None else summarise_steps(rank.steps)
    alone = _without_window(rank, record, met)
    trouble = _Trouble(list(rank.step_problems))
    cut_off: RankSummary | None = None
    # The last window is the farthest from the start, when nothing is warming up any more.
    for window in reversed(rank.windows):
        if window.trace_path is None:
            continue
        judged = _judge(rank, window, window.trace_path, alone, request, waits, trouble)
        if judged is not None and not judged.is_cut_off:
            return _with_metrics(judged, rank)
        cut_off = cut_off or judged
    if cut_off is not None:
        return _with_metrics(cut_off, rank)
    if trouble.not_there is not None:
        raise UsageError(trouble.not_there)
    subject = Subject(
        rank.rank,
        record,
        thresholds=request.thresholds,
        memory=_memory(rank, None, trouble),
        has_peers=request.has_peers,
        loader=_loader_of(alone),
    )
    alone = replace(alone, notes=tuple(trouble.notes))
    return _with_metrics(_with_findings(alone, subject), rank)


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
        host=None,
        device=None,
        communication=None,
        device_steps=None,
        critical_path=None,
        compute=None,
        scope=None,
        window=None,
        window_steps=(),
        window_step_ns=None,
        window_median_ns=None,
        findings=(),
        together_ns=None,
        problems=(),
        notes=(),
        metrics=None,
        windows=len(rank.windows),
        meeting=met or _meeting_without_window(rank),
    )


def _memory(rank: RankRun, trace: Trace | None, trouble: _Trouble) -> MemoryView | None:
    """The rank's recorded memory; None if there is none or it cannot be read."""
    if rank.manifest is None:
        return None
    from stepscope.analysis.memory.opening import memory_of_rank  # many modules, for few ranks

    try:
        return memory_of_rank(rank, trace)
    except StepscopeError as error:
        trouble.notes.append(str(error))
        return None


def _judge(
    rank: RankRun,
    window: Window,
    path: Path,
    alone: RankSummary,
    request: Request,
    waits: Waits | None,
    trouble: _Trouble,
) -> RankSummary | None:
    """The summary of a rank by one of its windows; None if that window cannot be judged."""
    try:
        trace = load(path)
    except StepscopeError as error:
        trouble.notes.append(str(error))
        return None
    with second_thread(trace.event_count) as second:
        # These need nothing derived, and are found while this thread derives.
        second.prepare(partial(memory_events, trace), _load_rules)
        try:
            gpu_work(trace, request.scope)
        except UsageError as error:
            # Another window may have these steps.
            trouble.not_there = trouble.not_there or str(error)
            return None
        judge = _WindowJudge(rank, window, trace, alone, request, waits, trouble, second)
        return judge.host_steps() if trace.lacks_end else judge.judge()


class _Measured(NamedTuple):
    """What is measured on a window before any rule is asked.

    Attributes:
        view: The window.
        host: The partition of the main thread's time; None without a main thread.
        device: The partition of the GPUs' time; None without GPU work.
        meeting: What the comparison of ranks needs, by this window.
    """

    view: WindowView
    host: HostPartition | None
    device: Breakdown | None
    meeting: Meeting


@dataclass
class _WindowJudge:
    """Judges a rank by one of its windows, whose trace has the steps asked for.

    Attributes:
        rank: The rank.
        window: The window.
        trace: Its trace.
        alone: What is known about the rank without the window.
        request: What is asked of the rank.
        waits: How long it waited for others; None: unknown.
        trouble: Receives what could not be read.
        second: Does part of the work.
    """

    rank: RankRun
    window: Window
    trace: Trace
    alone: RankSummary
    request: Request
    waits: Waits | None
    trouble: _Trouble
    second: SecondThread

    def judge(self) -> RankSummary | None:
        """The summary of the rank; None if the window cannot be judged."""
        try:
            measured = self._measure()
        except StepscopeError as error:
            if self.request.scope.steps is not None and isinstance(error, UsageError):
                raise
            self.trouble.notes.append(str(error))
            return None
        problems = self._note_problems()
        self.trouble.notes.extend(measured.view.steady.notes)
        self.trouble.notes.extend(measured.view.graph.notes)
        if measured.host is None and measured.device is None:
            self.trouble.notes.append(
                f"{self.window.trace_path}: no thread with operators or calls, and no GPU work"
            )
            return None
        subject = self._subject(measured, problems)
        summary = self._summary(measured, subject)
        _return_memory(self.trace)  # the path and idle time took more than the rules do
        return _with_findings(summary, subject, self.second)

    def host_steps(self) -> RankSummary:
        """The summary by a file that lacks its end: how long annotated steps take on the host."""
        steady = steady_steps(self.trace, Scope(steps=self.request.scope.steps))
        is_annotated = bool(steady.steps) and not self.trace.step_source
        problems = self._note_problems()
        if is_annotated:
            self.trouble.notes.extend(steady.notes)
        subject = Subject(
            rank=self.alone.rank,
            steps=self.alone.steps,
            problems=problems,
            thresholds=self.request.thresholds,
            memory=_memory(self.rank, None, self.trouble),
            has_peers=self.request.has_peers,
            loader=_loader_of(self.alone),
        )
        summary = replace(
            self.alone,
            window=self.window,
            window_steps=steady.steps if is_annotated else (),
            window_step_ns=steady.step_ns if is_annotated else None,
            window_median_ns=steady.median_ns if is_annotated else None,
            problems=problems,
            notes=tuple(self.trouble.notes),
            is_cut_off=True,
        )
        return _with_findings(summary, subject)

    def _measure(self) -> _Measured:
        asked = self.request.scope
        view = WindowView(self.trace, asked, self.request.baseline)
        _prepare(self.trace, asked, self.second)
        host = partition_host(self.trace, view.scope.steps)
        device = None
        if view.has_gpu:
            # Neither is needed for the other, nor for timeline and idle time.
            self.second.prepare(lambda: view.path, partial(summarise_compute, view))
            device = break_down_devices(view.timeline, view.idle)
        meeting = self.alone.meeting
        if meeting.window != self.window.index:
            meeting = _with_window(meeting, self.window, self.trace, asked)
        return _Measured(view, host, device, meeting)

    def _note_problems(self) -> tuple[tuple[str, int, str], ...]:
        """Notes what is wrong with the trace, and returns it: problem, count and message."""
        table = self.trace.all_problems
        problems = tuple(table["problem", "count", "message"].iter_rows())
        self.trouble.notes.extend(f"{message} ({count}×)" for _, count, message in problems)
        return problems

    def _subject(self, measured: _Measured, problems: tuple[tuple[str, int, str], ...]) -> Subject:
        waits = self.waits
        if waits is not None and waits.window != self.window.index:
            waits = None
        return Subject(
            rank=self.alone.rank,
            steps=self.alone.steps,
            host=measured.host,
            window=measured.view,
            waits=None if waits is None else waits.table,
            problems=problems,
            thresholds=self.request.thresholds,
            memory=_memory(self.rank, self.trace, self.trouble),
            has_peers=self.request.has_peers,
            loader=_loader_of(self.alone),
        )

    def _summary(self, measured: _Measured, subject: Subject) -> RankSummary:
        """The summary without findings."""
        view, host, device, meeting = measured
        waits = subject.waits
        cost_ns, costs_ns = (None, None) if waits is None else cost_of_waits(view, waits)
        return replace(
            self.alone,
            host=None if host is None else HostSummary.of(host),
            device=None if device is None else device.partition,
            communication=None if device is None else _communication(view),
            device_steps=None if device is None else Rows.of(view.timeline.steps),
            critical_path=None if device is None else view.path.partition,
            compute=summarise_compute(view),
            scope=view.timeline.scope if device is not None else host_scope(host, view.asked),
            window=self.window,
            window_steps=view.graph.steps,
            window_step_ns=view.step_ns,
            window_median_ns=view.steady.median_ns if view.graph.steps else view.step_ns,
            step_source=self.trace.step_source,
            problems=subject.problems,
            notes=tuple(self.trouble.notes),
            meeting=meeting,
            cost_of_waits_ns=cost_ns,
            costs_of_waits_ns=costs_ns,
            exchanges=_exchanges(view, has_gpu=device is not None),
            exchanges_per_step=len(point_to_point(view).collectives) / max(1, view.steps)
            if device is not None
            else 0.0,
        )


def _exchanges(view: WindowView, *, has_gpu: bool) -> bool:
    """Whether the rank sends to single other ranks or receives."""
    if has_gpu:
        return bool(point_to_point(view).is_one.any())
    name = pl.col("name").cast(pl.String)
    found = view.trace.names.filter(name.str.contains(r"^(c10d::|gloo:)(send|recv)"))
    return bool(len(found.select("name").head(1).collect()))


def _prepare(trace: Trace, asked: Scope, second: SecondThread) -> None:
    """Ask ahead what does not depend on the graph of the steps, and is asked in any case.

    The order is that of need, but for what waits: derived columns take much memory until they are
    in the store, so the thread that writes them has the second core to itself. Beside the graph,
    they take more than all that follows, so that their memory is returned then. Arguments take much
    until all have looked into them, so what may look into them comes first.
    """
    recomputation = partial(find_recomputed, trace)
    operands = partial(_read_operands, trace)
    looks_into_arguments = may_read_arguments(trace)
    second.prepare(
        partial(_return_memory, trace),
        lambda: read_collectives(trace, gpu_work(trace, asked).members),
        *((recomputation, operands) if looks_into_arguments else (operands, recomputation)),
    )


def _return_memory(trace: Trace) -> None:
    """Return freed memory, if it is much, once derived columns take none."""
    trace.wait_until_cached()
    if trace.event_count >= PAYS_FROM_EVENTS:
        return_freed_memory()


def _load_rules() -> None:
    for name in rules_of_a_rank(has_memory=False):
        RULES[name]  # its module is imported


def _read_operands(trace: Trace) -> None:
    """Ask the last of those who look into the arguments that derivation has left in memory."""
    if trace.store is not None and not recorded_work(trace).is_empty():
        operands_of_all_work(trace)
    trace.drop_prefetched_arguments()


def _communication(view: WindowView) -> tuple[int, int]:
    """Time of all communication per step, of several devices their mean, and what hides of it."""
    line = view.timeline
    count = view.steps * max(1, len(line.scope.devices))
    hidden_ns = line.total_comm_ns - line.exposed_comm_ns
    return round(line.total_comm_ns / count), round(hidden_ns / count)


def _loader_of(summary: RankSummary) -> LoaderRecord | None:
    manifest = summary.meeting.manifest
    return None if manifest is None else manifest.loader


def _with_findings(
    summary: RankSummary, subject: Subject, second: SecondThread | None = None
) -> RankSummary:
    """The summary with the findings of the rules about one rank, and their joint saving."""
    names = rules_of_a_rank(has_memory=subject.memory is not None)
    rules = [partial(_check, name, subject) for name in names]
    found: list[Finding] = []
    for of_rule in (second or SecondThread(None)).share(rules):
        found += of_rule
    together_ns = saved_together(found, subject.window, subject.step_ns or 0)
    own = [finding for finding in found if finding.waits_for is None]
    own_ns = together_ns
    if len(own) < len(found):
        own_ns = saved_together(own, subject.window, subject.step_ns or 0)
    found, with_waits_ns = _with_waits(found, subject)
    # The changes of a replay are as large as the trace, so they are dropped here.
    findings = tuple(replace(finding, changes=None) for finding in found)
    if subject.steps is None and subject.window is not None and not subject.window.graph.steps:
        findings = tuple(map(of_whole_file, findings))
    return replace(
        summary,
        findings=findings,
        together_ns=together_ns,
        together_own_ns=own_ns,
        together_with_waits_ns=with_waits_ns,
    )


def _with_waits(found: Sequence[Finding], subject: Subject) -> tuple[list[Finding], int | None]:
    """The findings with what each saves together with the waits for other ranks; and all of them.

    Waits that a slow host hides appear once it is quicker, so the two do not add up.
    """
    window = subject.window
    if window is None or subject.waits is None or not window.has_gpu:
        return list(found), None
    calm = without_waits(window, waited_in(window, subject.waits))
    step_ns = subject.step_ns or window.step_ns

    def saved_ns(changes: Changes) -> int:
        return round(replay(changes).saving_ns / max(1, window.step_ns) * step_ns)

    replayed = [one.changes for one in found if one.changes is not None]
    told = [
        one
        if one.changes is None
        else replace(one, with_waits_ns=saved_ns(one.changes.and_also(calm)))
        for one in found
    ]
    return told, saved_ns(functools.reduce(Changes.and_also, replayed, calm))


def _check(rule: str, subject: Subject) -> list[Finding]:
    with working(f"Checking {rule}"):
        return RULES[rule](subject)


def _with_metrics(summary: RankSummary, rank: RankRun) -> RankSummary:
    if rank.metrics_path is None:
        return summary
    try:
        return replace(summary, metrics=summarise_metrics(rank.metrics_path))
    except StepscopeError as error:
        return replace(summary, notes=(*summary.notes, str(error)))
