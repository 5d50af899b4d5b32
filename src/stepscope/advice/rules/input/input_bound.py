"""Input-bound: the step waits for its batch.

Measured as the time in which the training thread waited for the next batch: from the step record
(`watch`, or a phase named data or input), which the profiler does not slow down, else from the
DataLoader's ranges in a trace. All waits count, however unevenly they fall: a loader with workers
makes some steps wait long and others not at all, so means are compared, not medians. Waits at the
start of an epoch are of another kind and left out, as nobody can prepare the first batch before its
epoch begins: `slow-epoch-start` has them. A wait of less than 50 µs per step is none that advice
ends: a batch that a worker has ready takes as long to receive. The saving assumes that batches are
prepared beside the step. Each step then lasts as long as it does now without its wait, but for what
it costs to receive a batch from another process. On a CPU the workers share the CPUs with the
operators, whose threads are not recorded and may use all of them: where they would lose notably,
the saving is the most that it can be.

In a trace with GPU work the steps are replayed without the wait, because the host may wait while
the GPU works. Where the window began with batches or work in store, its steps are shorter than the
pace at which batches come: then the saving is counted from that pace, which the training has once
the store is used up.
"""

from __future__ import annotations

import numpy as np

from stepscope.advice.evidence.loader_advice import LoaderAdvice, LoaderFacts, advise, facts_of
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.evidence.window_view import WindowView, once
from stepscope.advice.finding import Evidence, Finding, seen, severity_of
from stepscope.advice.rules.input import slow_epoch_start
from stepscope.analysis.graph.changes import Changes
from stepscope.analysis.graph.replay import Replay, replay, unchanged
from stepscope.analysis.record.pace import RECEIVING_NS
from stepscope.analysis.record.summary import is_uneven
from stepscope.analysis.selection.partition import INPUT
from stepscope.run.figures import duration
from stepscope.trace.arrays import intervals

WORKERS_LABEL = "loader workers to begin with"
ALONE_LABEL = "step with these workers alone"
TRANSFER_LABEL = "receiving a batch from a worker, about"
_AT_STARTS = "left out: waits at the start of epochs, per step"
_RECORD, _HOST, _REPLAY = "step record", "trace", "trace, replayed"
_NOTABLE_LOSS = 0.1
"""Of the saving: what a training on CPUs may lose to workers before the saving is no sure one."""
_SAME_CPUS = (
    " The model computes on the same CPUs, and loses what the workers take of them: `stepscope "
    "try` measures what is left."
)
_SHARE_LABELS = {
    _RECORD: "share of waiting in the step",
    _HOST: "share of waiting in the step",
    _REPLAY: "share of the step that it costs",
}


def find_input_bound(subject: Subject) -> list[Finding]:
    """The finding, if the wait's share of the step is above the threshold."""
    measured = _from_record(subject) or _from_trace(subject)
    if measured is None or measured[5] < RECEIVING_NS:
        return []
    step_ns, saved_ns, share = measured[:3]
    limits = subject.thresholds
    is_too_little = share < limits.input_bound_low
    is_behind_waits = is_too_little and subject.waits is not None
    if is_too_little and not (is_behind_waits and measured[5] >= limits.input_bound_low * step_ns):
        return []
    facts = facts_of(subject)
    loader = advise(facts, step_ns - _at_starts_ns(subject, measured[3]), saved_ns)
    takes_cpus = _takes_cpus(subject, facts, loader, step_ns, saved_ns)
    saving_ns: int | None = max(0, saved_ns - loader.transfer_ns)
    if loader.no_saving:
        saving_ns = None
    return [
        Finding(
            id="input-bound",
            title="the step waits for its input",
            severity=severity_of(share, limits),
            rank=subject.rank,
            saving_ns=saving_ns,
            saving_reason=loader.no_saving,
            assumption=loader.assumption + _describe_pace(subject, measured),
            predicted_step_ns=None if saving_ns is None else step_ns - saving_ns,
            evidence=_evidence(subject, measured, _of_the_loader(facts, loader)),
            advice=loader.advice + (_SAME_CPUS if takes_cpus else ""),
            changes=_changes(subject) if saving_ns or is_behind_waits else None,
            is_behind_waits=is_behind_waits,
            is_upper_bound=loader.needs_cheaper or takes_cpus,
        )
    ]


def _takes_cpus(
    subject: Subject, facts: LoaderFacts, loader: LoaderAdvice, step_ns: int, saved_ns: int
) -> bool:
    """Whether more workers may take CPUs away from a training that computes on them.

    At worst its operators use all CPUs that the present workers leave.
    """
    now, window = facts.workers or 0, subject.window
    is_on_gpu = bool(subject.job_devices) or (window is not None and window.has_gpu)
    if subject.steps is not None:
        is_on_gpu |= subject.steps.host.is_on_device
    if is_on_gpu or not facts.burns_cpu or loader.workers is None or loader.workers <= now:
        return False
    if facts.cpus is None or facts.cpus <= loader.workers:
        return facts.cpus is not None
    longer = (loader.workers - now) / (facts.cpus - loader.workers)
    return longer * (step_ns - saved_ns) >= _NOTABLE_LOSS * saved_ns


def _describe_pace(subject: Subject, measured: _Measured) -> str:
    window = subject.window
    if measured[3] != _REPLAY or window is None or not window.graph.had_store:
        return ""
    return (
        f"; the steps shown had batches or work in store: later ones take {duration(measured[0])}, "
        "the pace at which batches come"
    )


def _evidence(
    subject: Subject, measured: _Measured, of_the_loader: tuple[Evidence, ...]
) -> tuple[Evidence, ...]:
    step_ns, _, share, source, steps, waited_ns = measured
    return (
        Evidence("step now", step_ns, "ns"),
        Evidence("wait for input per step", waited_ns, "ns"),
        Evidence(_SHARE_LABELS[source], share, "share"),
        *_median_step(subject, source, step_ns),
        *seen(_AT_STARTS, _at_starts_ns(subject, source), "ns"),
        Evidence("steps measured", steps, "count"),
        *of_the_loader,
        Evidence("measured by", source, "text"),
    )


def _at_starts_ns(subject: Subject, source: str) -> int:
    """What the starts of epochs cost per step, if the record is what was measured."""
    if source != _RECORD or subject.steps is None:
        return 0
    return subject.steps.epoch_starts.wait_ns // len(subject.steps.steps)


def _of_the_loader(facts: LoaderFacts, loader: LoaderAdvice) -> tuple[Evidence, ...]:
    known = (
        ("loader workers now", facts.workers, "count"),
        ("CPUs for this rank", facts.cpus, "count"),
        ("share of loading that is work for a CPU", facts.cpu_share, "share"),
        ("size of a batch", facts.record.batch_bytes, "bytes"),
        (TRANSFER_LABEL, loader.transfer_ns or None, "ns"),
        (WORKERS_LABEL, loader.workers, "count"),
        (ALONE_LABEL, loader.alone_ns, "ns"),
    )
    return tuple(Evidence(label, one, unit) for label, one, unit in known if one is not None)


_Measured = tuple[int, int, float, str, int, int]


def _median_step(subject: Subject, source: str, step_ns: int) -> tuple[Evidence, ...]:
    """The median step, where waits in bursts make the mean much longer."""
    median_ns, bursts_ns = step_ns, 0
    if source == _RECORD and subject.steps is not None:
        median_ns = subject.steps.median_ns
        starts_ns = _at_starts_ns(subject, source)
        bursts_ns = subject.steps.wait_ns - starts_ns - subject.steps.median_wait_ns
    elif source == _HOST and subject.host is not None:
        median_ns = subject.host.median_step_ns
        waits = subject.host.steps["input_ns"].to_numpy()
        bursts_ns = round(float(waits.mean() - np.median(waits)))
    if not is_uneven(step_ns, median_ns) or 2 * bursts_ns < step_ns - median_ns:
        return ()
    return (Evidence("median step, as the waits come in bursts", median_ns, "ns"),)


def _from_record(subject: Subject) -> _Measured | None:
    """(step, saving, share, source, number of steps, wait per step) from the step record."""
    summary = subject.steps
    if summary is None or summary.partition.of(INPUT) == 0:
        return None
    waited_ns = summary.partition.of(INPUT) - summary.epoch_starts.wait_ns
    share = waited_ns / summary.partition.total_ns
    waited_ns = round(waited_ns / len(summary.steps))
    least_ns, facts = _least_step_ns(subject), facts_of(subject)
    if facts.keeps_workers is False:  # what keeping them saves is not counted
        epoch = summary.epoch_starts.shortest
        if epoch and epoch <= (facts.workers or 0):
            # Each worker makes one batch of an epoch, so that more of them change nothing.
            return summary.mean_ns, 0, 0.0, _RECORD, len(summary.steps), waited_ns
        least_ns += slow_epoch_start.saving_range(subject, summary).middle_ns
    # On average a device takes as long for a step as the host: less where some of the host's steps
    # were held up by what earlier ones had launched.
    paced_ns = min(summary.mean_ns, summary.mean_device_ns or summary.mean_ns)
    saved_ns = min(waited_ns, paced_ns - least_ns)
    if saved_ns < waited_ns:
        share = max(0, saved_ns) / max(1, summary.mean_ns)
    return summary.mean_ns, max(0, saved_ns), share, _RECORD, len(summary.steps), waited_ns


def _least_step_ns(subject: Subject) -> int:
    """What a step takes at least without its wait for input, because the GPU works meanwhile.

    The record shows the host's side alone; a recorded window shows what else limits the step.
    Without one, steps whose batch was ready do: a host that waits for its batch waits less for the
    GPU after it.
    """
    window, summary = subject.window, subject.steps
    if window is None and summary is not None and summary.mean_device_ns is not None:
        return summary.ready_ns
    if window is None or not window.has_gpu or not window.graph.steps:
        return 0
    return _replayed_without_waits(window).steady_state_ns // len(window.graph.steps)


def _from_trace(subject: Subject) -> _Measured | None:
    window = subject.window
    if window is not None and window.has_gpu:
        return _from_replay(subject, window)
    if subject.host is None or subject.host.partition.of(INPUT) == 0:
        return None
    partition = subject.host.partition
    step_ns = subject.step_ns or subject.host.step_ns
    share = partition.of(INPUT) / partition.total_ns
    saved_ns = round(share * step_ns)
    return step_ns, saved_ns, share, _HOST, partition.steps, saved_ns


def _from_replay(subject: Subject, window: WindowView) -> _Measured | None:
    """The same where host and GPU work side by side: the steps again, without the wait."""
    waited_ns = intervals.clip(window.graph.input_waits, *window.window).total_ns
    if not waited_ns:
        return None
    again = _replayed_without_waits(window)
    if not (again.saving_ns or subject.waits is not None):
        return None
    share = again.saving_share
    step_ns = subject.step_ns or window.step_ns
    if window.graph.had_store:
        step_ns = window.graph.replayed_step_ns
    saved_ns = round(share * step_ns)
    return step_ns, saved_ns, share, _REPLAY, window.steps, window.per_step(waited_ns)


def _changes(subject: Subject) -> Changes | None:
    """The window without its waits for input, to be replayed with other findings' causes."""
    window = subject.window
    if window is None:
        return None
    return _without_waits(window) if len(window.graph.input_waits) else None


def _without_waits(window: WindowView) -> Changes:
    graph = window.graph
    return unchanged(graph).scale_host(window.graph.input_waits, 0.0, lanes=(graph.main_lane,))


@once
def _replayed_without_waits(window: WindowView) -> Replay:
    return replay(_without_waits(window))
