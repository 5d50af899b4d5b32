"""Rules about what stops the training thread: the garbage collector, and other programs."""

from __future__ import annotations

import polars as pl

from stepscope.advice.evidence.replayed import replayed_finding
from stepscope.advice.evidence.subject import Subject, plain_finding
from stepscope.advice.finding import Evidence, Finding, severity_of
from stepscope.analysis.graph.replay import unchanged
from stepscope.analysis.host.causes import HostCause
from stepscope.run.figures import percent, shortened_list
from stepscope.run.step_record import OF_OPTION
from stepscope.trace.arrays import intervals

_TITLE = "Python's garbage collector stops the step"
_ASSUMPTION = "the collector does not run within steps"
_TITLE_CALLED = "gc.collect() stops the step"
_ASSUMPTION_CALLED = "gc.collect() is not called within steps"
_MOSTLY = 0.5
_CALL_FRAMES = r"<built-in (method|function) collect\b|^gc\.collect"
ADVICE = (
    "Call gc.freeze() after start-up, gc.disable(), and gc.collect(1) every so many "
    "steps; with several ranks, in the same step on all of them. Remove other calls of "
    "gc.collect()."
)


def find_garbage_collector(subject: Subject) -> list[Finding]:
    """Garbage collector: Python's collector stops the training thread.

    Measured from its pauses: in a trace as Stepscope or torch wrote them (`record_python_gc_info`,
    2.9 and later), else by the step record, which has them for every step. The saving
    assumes that the collector does not run within steps. The record does not show which pauses a
    GPU waited for: then there is none.

    A collection that code requests (`gc.collect()`) happens whether or not the collector is
    enabled, so the advice for it is another. The record tells both apart, and where it was
    requested. In a trace the pause lies in a frame of that call, if stacks were recorded.
    """
    return _from_trace(subject) or _from_record(subject)


def _advice_on_calls(places: tuple[str, ...]) -> str:
    options = [place.removeprefix(OF_OPTION) for place in places if place.startswith(OF_OPTION)]
    others = [place for place in places if not place.startswith(OF_OPTION)]
    switch_off = ""
    if options:
        switch_off = f"Switch off Stepscope's option {options[0]}, which collects garbage itself."
        if not others:
            return switch_off
        switch_off = f" {switch_off}"
    where = f" at {shortened_list(others, 3)}" if others else ""
    return (
        f"Remove the call of gc.collect(){where} from the loop, or make it every few hundred "
        "steps. gc.disable() does nothing against it. Tensors are freed without it as soon as "
        "nothing refers to them; if memory grows without the call, find the cycles that keep "
        f"them.{switch_off}"
    )


def _called_share(subject: Subject) -> float | None:
    """Of the pauses in the record, the share that code requested; None if unknown."""
    host = subject.steps.host if subject.steps is not None else None
    return host.gc_called_ns / host.gc_ns if host is not None and host.gc_ns else None


def _from_record(subject: Subject) -> list[Finding]:
    summary = subject.steps
    if summary is None:
        return []
    host = summary.host
    share = host.gc_ns / max(1, summary.mean_ns)
    if share < subject.thresholds.garbage_collection:
        return []
    is_called = 2 * host.gc_called_ns >= host.gc_ns
    title, assumption, advice = _TITLE, _ASSUMPTION, ADVICE
    if is_called:
        title, assumption = _TITLE_CALLED, _ASSUMPTION_CALLED
        advice = _advice_on_calls(subject.gc_calls)
    return plain_finding(
        subject,
        rule="garbage-collector",
        title=title,
        severity=severity_of(share, subject.thresholds),
        step_ns=summary.mean_ns,
        saving_ns=None if host.is_on_device else host.gc_ns,
        reason="the record does not show which pauses the GPU waited for",
        assumption=assumption,
        evidence=(
            Evidence("paused per step", host.gc_ns, "ns"),
            Evidence("share of the step", share, "share"),
            Evidence("requested by gc.collect(), per step", host.gc_called_ns, "ns"),
            Evidence("most in one step", host.gc_worst_ns, "ns"),
            Evidence("mean step", summary.mean_ns, "ns"),
            Evidence("measured by", "step record", "text"),
        ),
        advice=advice,
        slows_everything=True,
    )


def _from_trace(subject: Subject) -> list[Finding]:
    window = subject.window
    if window is None:
        return []
    graph = window.graph
    pauses = intervals.clip(graph.host.of(HostCause.GARBAGE_COLLECTION), *window.window)
    if window.share(pauses.total_ns) < subject.thresholds.garbage_collection:
        return []
    calls = window.spans(
        window.main_spans(
            (pl.col("category") == "python_function") & pl.col("name").str.contains(_CALL_FRAMES)
        )
    )
    called_ns = intervals.intersection(pauses, calls).total_ns
    share = called_ns / pauses.total_ns if called_ns else _called_share(subject)
    is_called = share is not None and share >= _MOSTLY
    advice = ADVICE
    if is_called:
        advice = _advice_on_calls(subject.gc_calls)
    elif share is None:
        advice = f"{ADVICE} The trace does not show whether your code calls gc.collect(): against "
        advice += "such a call, gc.disable() does nothing."
    return replayed_finding(
        subject,
        unchanged(graph).scale_host(pauses),
        rule="garbage-collector",
        title=_TITLE_CALLED if is_called else _TITLE,
        assumption=_ASSUMPTION_CALLED if is_called else _ASSUMPTION,
        evidence=(
            Evidence("pauses per step", len(pauses) / window.steps, "count"),
            Evidence("paused per step", window.per_step(pauses.total_ns), "ns"),
            Evidence("longest", int(pauses.lengths.max()), "ns"),
        ),
        advice=advice,
        least=subject.thresholds.saving_low / 3,
    )


ON_DEVICE = "the record does not show how much of it the device waited for"


def find_busy_cpus(subject: Subject) -> list[Finding]:
    """Busy CPUs: the training thread is ready to run, and others have its CPUs.

    Measured from the step record (Linux): the time per step that the training thread spent in the
    scheduler's queue. Whatever the thread does then takes longer, so a trace shows it as slow
    operators and as Python between them, at changing places. The saving assumes that the thread
    never waits for a CPU; where a GPU limits the step, nobody knows what that saves. Threads that
    help with single operators wait in queues of their own, which the record does not show: the real
    loss may be greater.
    """
    summary = subject.steps
    if summary is None or not summary.host.queued_ns:
        return []
    host, queued_ns = summary.host, summary.host.queued_ns or 0
    share = queued_ns / max(1, summary.mean_ns)
    if share < subject.thresholds.busy_cpus:
        return []
    evidence = [
        Evidence("waiting for a CPU per step", queued_ns, "ns"),
        Evidence("share of the step", share, "share"),
    ]
    if host.cpu_ns is not None:
        evidence.append(Evidence("running on a CPU per step", host.cpu_ns, "ns"))
    cpus = ""
    if subject.loader is not None:
        evidence.append(Evidence("CPUs that the process may use", subject.loader.cpus, "count"))
        evidence.append(Evidence("ranks that share them", subject.loader.local_ranks, "count"))
        evidence.append(Evidence("loader workers", subject.loader.workers, "count"))
        cpus = f" ({subject.loader.cpus} here)"
    evidence.append(Evidence("mean step", summary.mean_ns, "ns"))
    return plain_finding(
        subject,
        rule="busy-cpus",
        title=(
            f"the CPUs are busy: for {percent(share)} of the step the training thread "
            "waits for a free one"
        ),
        severity=severity_of(share, subject.thresholds),
        step_ns=summary.mean_ns,
        saving_ns=None if host.is_on_device else queued_ns,
        reason=ON_DEVICE,
        assumption="a CPU is free whenever the training thread can run",
        evidence=tuple(evidence),
        advice=(
            "Find out what uses the CPUs (top, `stepscope monitor`). Stop other programs, or "
            "reserve CPUs for this one (taskset, --cpus-per-task). If its own threads use "
            "them, keep torch.set_num_threads, times the ranks on this machine, plus the "
            f"loaders' workers at or below the number of CPUs{cpus}."
        ),
        slows_everything=True,
    )
