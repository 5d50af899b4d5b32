"""CPU-bound Python: the step waits for Python code outside operators.

Measured as stretches of the training thread in which nothing is recorded but Python: no operator,
no call, no wait for input, no wait of autograd's engine for its threads, nor the beginning of an
epoch (`slow-epoch-start`). Short ones, without what recording adds to them, lie between any
two operators and are left to `launch-bound`. Left out, too, is when Stepscope timed and noted
the steps, as far as stacks show its functions: nothing of it can be moved out of the step.
Where several ranks train, stretches inside backward and communication and right after the call of
a collective are left out: a wait for other ranks leaves no event on this thread and looks the same.
The saving assumes that the long ones are gone.

A thread that has no CPU looks the same, and so does one that the garbage collector stops, where
torch does not write its pauses. If the step record shows that these are at least half of the time
in such stretches, there is no finding: `busy-cpus` or `garbage-collector` has it. But a thread
loses its CPU in all work alike. Where the longest stretches, half of all, lie in one function and
in half of the steps, and what the thread itself runs of that function is notable, the function is
named, and the saving is of the stretches in it. And a thread that sleeps, or waits for a file or
for another thread, neither runs nor waits for a CPU, which the step record shows, however busy the
CPUs are (`_mostly_sleeping`). And over all steps of the record, a busy machine makes all parts of
the step longer alike: where much of the step lies outside all phases, and Python makes up most of
that in the window, the program does something there (`_outside_phases`). `slow-phase` has it if a
phase that it reports holds at least half, unless the function is known. And in a step of a few
milliseconds whose stretches are short in most steps, no Python is slow: eager-mode overhead
dominates, or Python around compiled code or CUDA graphs, and the finding says that.

Without Python frames nobody knows that a stretch is Python: the finding then says that the host
delays the step, and that the cause was not recorded; or, if the step record shows that the thread
runs in them, that Python or a library does.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from stepscope.advice.evidence.compiled_code import Mode, less_python, mode_of
from stepscope.advice.evidence.locations import MainThreadWork
from stepscope.advice.evidence.replayed import replayed_finding
from stepscope.advice.evidence.subject import Subject, plain_finding
from stepscope.advice.evidence.window_view import WindowView
from stepscope.advice.finding import Evidence, Finding, Severity, severity_of
from stepscope.advice.rules.input import slow_epoch_start
from stepscope.advice.rules.steps import slow_phase
from stepscope.analysis.graph.replay import unchanged
from stepscope.analysis.host.causes import CAUSES, UNNAMED, HostCause
from stepscope.analysis.host.waits import shows_collectives
from stepscope.analysis.record.summary import StepSummary
from stepscope.analysis.selection.names import times_of
from stepscope.analysis.selection.partition import OTHER
from stepscope.run.figures import percent
from stepscope.run.step_record import BACKWARD, COMMUNICATION, FORWARD
from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import Intervals


def _sleeping_per_step(subject: Subject, window: WindowView) -> tuple[int, int] | None:
    """What a step takes beyond running, waiting for a CPU and known waits: at least, at most.

    In ns, from the step record (`HostTimes.asleep_ns`). Known waits are those for input and, by the
    trace, for other ranks. Where the trace does not show these, a rank that makes the others wait
    does so at most in its phases: at least is what it takes outside of them. None, for unknown,
    where a GPU works, whose host waits for it.
    """
    summary = subject.steps
    if summary is None or summary.host.asleep_ns is None or window.has_gpu:
        return None
    most_ns = summary.host.asleep_ns
    if subject.has_peers and not shows_collectives(window.trace):
        least_ns = 0
        if subject.is_late and any(one.name in _SYNCHRONISING for one in summary.phases):
            least_ns = max(0, _asleep_outside_phases_ns(summary))
        return least_ns, most_ns
    graph = window.graph
    waits = graph.host.of(HostCause.COMMUNICATION, lanes=(graph.main_lane,))
    waiting_ns = window.per_step(intervals.clip(waits, *window.window).total_ns)
    known_ns = max(0, most_ns - waiting_ns)
    return known_ns, known_ns


def _asleep_outside_phases_ns(summary: StepSummary) -> int:
    """What it sleeps outside all phases at least: as if it ran and waited for a CPU only there."""
    host = summary.host
    return _outside_phases_ns(summary) - (host.cpu_ns or 0) - (host.queued_ns or 0)


def _outside_phases_ns(summary: StepSummary) -> int:
    """What a step takes outside all phases and beside its wait for input, by the record."""
    whole = summary.partition
    return sum(whole.per_step_ns(part) for part in whole.parts if part.name == OTHER)


_ADVICE = (
    "Move that Python out of the step: prepare data in DataLoader workers, vectorise loops as "
    "tensor operations, do logging and bookkeeping less often or in another thread."
)
_NO_STACKS = (
    "Record with stacks to see what the host does there: without Python frames the trace does not "
    "say whether it is Python, a library or a wait."
)
_RUNS = (
    "If it is Python, move it out of the step: prepare data in DataLoader workers, vectorise loops "
    "as tensor operations, do logging and bookkeeping less often. Record with stacks "
    "(with_stack) or with py-spy (`stepscope run --py-spy`) to see which function it is."
)
_NO_STACKS_BACKWARD = (
    "Gradient hooks, custom autograd functions and the bookkeeping of wrappers run there. Record "
    "with stacks to see which."
)
_IN_BACKWARD = "between operators of backward"
_EAGER = "eager-mode overhead"
_AROUND = {
    Mode.COMPILED: "Python around the compiled code",
    Mode.CAPTURED: "Python around the CUDA graphs",
}
_SMALL = (_EAGER, *_AROUND.values())
"""How the titles of the findings about steps that are just small begin."""
_DOMINATES = 1 / 3
_SLEEPS = "the training thread sleeps or waits"
_SLEEPING = f"{_SLEEPS} outside operators, and not for a CPU"
_ADVICE_SLEEPING = (
    "Take sleeps out of the step, and hand reads and requests to DataLoader workers or to a thread "
    "beside the training. Where it waits for such a thread, make that one quicker, or use several."
)
_SLEEPING_WHERE = "Take sleeps out of the step, and have what it waits for ready in time."
_FEWEST_STEPS = 3
_MOSTLY, _MAINLY, _HARDLY = 0.9, 0.75, 0.1
_STACKS = "Record with stacks to see the lines."
_BETWEEN = "between operators"
_BEFORE_FORWARD = "between the optimizer's step and forward, where loops make batches and log,"
_BETWEEN_PASSES = (
    "between two passes through the model, where loops make inputs and handle results,"
)
_OUTSIDE = "outside all phases per step"
_QUEUED = "waiting for a CPU per step"
_UNRECORDED = "host between operators per step, cause not recorded"
_ANYWHERE = "outside operators"
_SYNCHRONISING = frozenset({BACKWARD, COMMUNICATION})
"""Phases in which ranks wait for each other."""
_MOST_LOOKED_AT = 8
"""How many stretches may make up half of them for the title to name their function."""
_MOST_IN_A_FUNCTION = 64
_OF_THE_RECORDER = (
    r"(^|/)stepscope/capture/"
    r"(steps/|record/|(clock_sync|pause|ranks|requests|shared_store|triggers)\.py)"
)
"""Functions that time, note and agree on steps: none of them calls code of the training."""
_ENGINE = "<built-in method run_backward"
_DATA_PARALLEL = "DistributedDataParallel.forward"
_COLLECTIVE = "c10d::"


def find_cpu_bound_python(subject: Subject) -> list[Finding]:
    """The finding, if long stretches of Python lengthen the step."""
    window = subject.window
    if window is None:
        return _asleep_by_record(subject)
    # Long is what is long without recording.
    least_ns = round(subject.thresholds.python_stretch_ns / window.graph.host_scale)
    long = _stretches(window, least_ns, subject.has_peers)
    if not len(long):
        return []
    queued_ns, paused_ns = _not_python_ns(subject, window)
    if 2 * (queued_ns + paused_ns) >= window.per_step(long.total_ns):
        every, long = long, _of_one_function(window, long)
        own_ns = (window.per_step(long.total_ns) - paused_ns) * _running_share(subject, queued_ns)
        if not len(long) or own_ns < subject.thresholds.saving_low * window.step_ns:
            return _of_a_sleeping_thread(subject, window, every) or _outside_phases(
                subject, window, every
            )
    lengths = long.lengths
    outside_ns = window.per_step(long.total_ns)
    longest = int(np.argmax(lengths))
    evidence = [
        Evidence(
            "Python outside operators per step" if window.has_stacks else _UNRECORDED,
            outside_ns,
            "ns",
        ),
        Evidence("stretches per step", len(long) / window.steps, "count"),
        Evidence("longest", int(lengths[longest]), "ns"),
    ]
    place, function = _where(window, long, longest)
    if place:
        evidence.append(Evidence("the longest is", place, "text"))
    graph = window.graph
    per_step = intervals.covered(long, graph.step_starts_ns, graph.step_ends_ns)
    if function is None and _is_one_phase(subject, window.per_step(long.total_ns)):
        return []
    # Where most of it falls into few steps, these are to be looked at.
    uneven = per_step > 2 * per_step.mean()
    is_small = _is_small(subject, window, long)
    where = function or _ANYWHERE
    title, advice = f"Python {where} delays the step", _ADVICE
    assumption = "the long stretches of Python are gone, or run beside the training thread"
    if not window.has_stacks:
        title, advice = _without_stacks(subject, window, long, function)
        assumption = "the long stretches between operators are gone"
    if _mostly_sleeping(subject, window, long):
        title = f"{_SLEEPS} {where}"
        advice = _ADVICE_SLEEPING if window.has_stacks else f"{_SLEEPING_WHERE} {_STACKS}"
        assumption = "it no longer sleeps there, and what it waits for is ready in time"
    found = replayed_finding(
        subject,
        unchanged(graph).scale_host(long, 0.0, lanes=(graph.main_lane,)),
        rule="cpu-bound-python",
        title=_overhead(window, outside_ns) if is_small else title,
        assumption=assumption,
        evidence=tuple(evidence),
        steps=tuple(int(graph.steps[i]) for i in np.nonzero(uneven)[0]) if graph.steps else (),
        most_ns=_most_ns(subject, window, long),
        advice=_more_work(subject, window) if is_small else advice,
    )
    if is_small and not window.has_gpu:
        return [replace(one, severity=Severity.LOW) for one in found]
    return found


def _without_stacks(
    subject: Subject, window: WindowView, long: Intervals, function: str | None
) -> tuple[str, str]:
    backward = intervals.intersection(long, window.graph.host.of(HostCause.BACKWARD))
    if 2 * backward.total_ns >= long.total_ns:
        return f"the host delays the step {_IN_BACKWARD}", _NO_STACKS_BACKWARD
    where = function or _BETWEEN
    if function is None and _lie_before_forward(window, long):
        where = _before_forward(subject)
    sleeping = _sleeping_per_step(subject, window)
    if sleeping is not None and sleeping[1] <= _HARDLY * window.per_step(long.total_ns):
        return f"Python or a library runs {where} and delays the step", _RUNS
    return (
        f"the host delays the step {where.removesuffix(',')}; the cause was not recorded",
        _NO_STACKS,
    )


def _most_ns(subject: Subject, window: WindowView, long: Intervals) -> int | None:
    """What the stretches take of an unrecorded step at most; None without phases in its record.

    Where these steps are longer than the recorded ones, as with longer samples, stretches grow with
    them, but those outside all phases cannot take more than the record has outside all phases.
    """
    summary = subject.steps
    if summary is None or not any(phase.name == FORWARD for phase in summary.phases):
        return None
    phases = [phase.name for phase in summary.phases if "/" not in phase.name]
    is_range = pl.col("category") == "user_annotation"
    ranges = window.main_spans(is_range & pl.col("name").is_in(phases))
    inside = intervals.intersection(long, window.spans(ranges))
    longer = (subject.step_ns or window.step_ns) / max(1, window.step_ns)
    inside_ns = window.per_step(inside.total_ns) * longer
    outside_ns = window.per_step(long.total_ns - inside.total_ns) * longer
    return round(min(outside_ns, _outside_phases_ns(summary)) + inside_ns)


def is_of_small_steps(finding: Finding) -> bool:
    """Whether such a finding says that no Python is slow: there is little else in the step."""
    return finding.title.startswith(_SMALL)


def is_about_sleep(finding: Finding) -> bool:
    """Whether such a finding says that the thread sleeps or waits, and runs no Python."""
    return finding.title.startswith(_SLEEPS)


def _overhead(window: WindowView, outside_ns: int) -> str:
    share = outside_ns / max(1, window.step_ns)
    dominates = " dominates" if share >= _DOMINATES else ""
    what = _AROUND.get(mode_of(window), _EAGER)
    return f"{what}{dominates}: {percent(share)} of the step passes between operators"


def _more_work(subject: Subject, window: WindowView) -> str:
    less = less_python(window, subject.purpose.is_inference)
    return (
        f"Give each step more work, with a larger batch. {less} If the step is short enough for "
        "you, nothing is wrong."
    )


def _before_forward(subject: Subject) -> str:
    return _BETWEEN_PASSES if subject.purpose.is_inference else _BEFORE_FORWARD


def _lie_before_forward(window: WindowView, long: Intervals) -> bool:
    """Whether most of the stretches lie between the beginnings of steps and of their forward."""
    graph = window.graph
    is_range = pl.col("category") == "user_annotation"
    forward = window.main_spans(is_range & (pl.col("name") == FORWARD))["start_ns"].to_numpy()
    if not len(forward):
        return False
    first = np.searchsorted(np.sort(forward), graph.step_starts_ns)
    known = first < len(forward)
    begins = np.sort(forward)[np.minimum(first, len(forward) - 1)]
    ends = np.where(known, np.minimum(begins, graph.step_ends_ns), graph.step_starts_ns)
    before = intervals.merge(graph.step_starts_ns, ends)
    return intervals.intersection(long, before).total_ns >= _MAINLY * long.total_ns


def _of_a_sleeping_thread(subject: Subject, window: WindowView, long: Intervals) -> list[Finding]:
    """The finding for a thread that sleeps at one place of each step, while the CPUs are busy."""
    sleeping_ns, _ = _sleeping_per_step(subject, window) or (0, 0)
    summary, limits = subject.steps, subject.thresholds
    if summary is None or sleeping_ns < limits.saving_medium * summary.mean_ns:
        return []
    graph = window.graph
    of_steps = intervals.covered(long, graph.step_starts_ns, graph.step_ends_ns)
    ran, places = MainThreadWork(window), set()
    for start, end in zip(graph.step_starts_ns, graph.step_ends_ns, strict=True):
        inside = intervals.clip(long, int(start), int(end))
        if not len(inside) or 2 * int(inside.lengths.max()) < sleeping_ns:
            return []
        longest = int(np.argmax(inside.lengths))
        places.add(_place(ran, int(inside.starts[longest]), int(inside.ends[longest])))
    if len(of_steps) < _FEWEST_STEPS or of_steps.min() < _MOSTLY * sleeping_ns or len(places) != 1:
        return []
    return _by_the_record(
        subject,
        summary,
        title=_SLEEPING,
        saving_ns=sleeping_ns,
        spent=(Evidence("neither running nor waiting for a CPU, per step", sleeping_ns, "ns"),),
        beside=(
            Evidence(_QUEUED, summary.host.queued_ns or 0, "ns"),
            Evidence("the longest stretch is", places.pop(), "text"),
        ),
        assumption="it no longer sleeps or waits there; what the CPUs are busy with stays",
        advice=_ADVICE_SLEEPING if window.has_stacks else f"{_SLEEPING_WHERE} {_STACKS}",
    )


def _by_the_record(
    subject: Subject,
    summary: StepSummary,
    *,
    title: str,
    saving_ns: int,
    spent: tuple[Evidence, ...],
    assumption: str,
    advice: str,
    beside: tuple[Evidence, ...] = (),
) -> list[Finding]:
    """The finding about a part of the thread's time that the record measures over all its steps.

    Args:
        saving_ns: That part of the mean step.
        spent: How long it is.
        beside: What else is known of the thread.
    """
    share = saving_ns / max(1, summary.mean_ns)
    basis = "step record" if subject.window is None else "step record and trace"
    return plain_finding(
        subject,
        rule="cpu-bound-python",
        title=title,
        severity=severity_of(share, subject.thresholds),
        step_ns=summary.mean_ns,
        saving_ns=saving_ns,
        assumption=assumption,
        evidence=(
            *spent,
            Evidence("share of the step", share, "share"),
            *beside,
            Evidence("mean step", summary.mean_ns, "ns"),
            Evidence("measured by", basis, "text"),
        ),
        advice=advice,
    )


def _asleep_by_record(subject: Subject) -> list[Finding]:
    """The finding for a thread that sleeps outside all phases, on a rank without a window.

    Inside phases it may wait for threads that compute with it, and for other ranks. These wait for
    a late rank, so outside of them it does not wait for these.
    """
    summary, limits = subject.steps, subject.thresholds
    if summary is None or summary.host.asleep_ns is None or subject.job_devices:
        return []
    if subject.world_size > 1 and not subject.is_late:
        return []
    if not {FORWARD, BACKWARD}.issubset(phase.name for phase in summary.phases):
        return []
    sleeping_ns = _asleep_outside_phases_ns(summary)
    if sleeping_ns < limits.saving_medium * summary.mean_ns:
        return []
    return _by_the_record(
        subject,
        summary,
        title=f"{_SLEEPS} outside all phases, and not for a CPU",
        saving_ns=sleeping_ns,
        spent=(
            Evidence(_OUTSIDE, _outside_phases_ns(summary), "ns"),
            Evidence("neither running nor waiting for a CPU, per step at least", sleeping_ns, "ns"),
        ),
        assumption="it no longer sleeps or waits there",
        advice=f"{_SLEEPING_WHERE} Record a window of this rank with stacks to see the lines.",
    )


def _outside_phases(subject: Subject, window: WindowView, long: Intervals) -> list[Finding]:
    """The finding for what the loop does outside all phases, while the CPUs are busy."""
    summary, limits = subject.steps, subject.thresholds
    if summary is None or summary.host.is_on_device or window.has_gpu or subject.has_peers:
        return []
    if not any(phase.name == FORWARD for phase in summary.phases):
        return []
    rest_ns = _outside_phases_ns(summary)
    share = rest_ns / max(1, summary.mean_ns)
    if share < limits.slow_phase_share:
        return []
    phases = [phase.name for phase in summary.phases if "/" not in phase.name]
    is_range = pl.col("category") == "user_annotation"
    inside = window.spans(window.main_spans(is_range & pl.col("name").is_in(phases)))
    outside = intervals.difference(long, inside)
    if not len(inside) or 2 * window.share(outside.total_ns) < share:
        return []
    graph = window.graph
    has_some = intervals.covered(outside, graph.step_starts_ns, graph.step_ends_ns) > 0
    if 2 * int(has_some.sum()) < len(has_some):
        return []
    before = _lie_before_forward(window, outside)
    where = _before_forward(subject) if before else "outside all phases"
    return _by_the_record(
        subject,
        summary,
        title=f"Python or a library runs {where} for {percent(share)} of the step",
        saving_ns=rest_ns,
        spent=(Evidence(_OUTSIDE, rest_ns, "ns"),),
        beside=(Evidence(f"{_QUEUED}, in all", summary.host.queued_ns or 0, "ns"),),
        assumption="it is done elsewhere, or no longer; what the CPUs are busy with stays",
        advice=_RUNS,
    )


def _mostly_sleeping(subject: Subject, window: WindowView, long: Intervals) -> bool:
    """Whether it sleeps or waits in most of the stretches, by the record or by its frames."""
    sleeping_ns, _ = _sleeping_per_step(subject, window) or (0, 0)
    if 2 * sleeping_ns >= window.per_step(long.total_ns):
        return True
    longest = _longest_half(long)
    return longest is not None and all(
        window.waits_over(int(start), int(end))
        for start, end in zip(longest.starts, longest.ends, strict=True)
    )


def _is_small(subject: Subject, window: WindowView, long: Intervals) -> bool:
    """Whether steps are short and most of them have no slow stretch: the model is just small.

    Single slow stretches in a few steps do not change that: the system interrupts any thread.
    Recording makes steps longer, so those that nobody recorded count, if there is a step record.
    """
    graph, limits = window.graph, subject.thresholds
    slow = long.lengths * graph.host_scale > limits.small_step_stretch_ns
    has_slow = intervals.covered(
        intervals.merge(long.starts[slow], long.ends[slow]),
        graph.step_starts_ns,
        graph.step_ends_ns,
    )
    usual_ns = float(np.median(graph.step_ends_ns - graph.step_starts_ns))
    if subject.steps is not None:
        usual_ns = min(usual_ns, subject.steps.median_ns)
    return usual_ns <= limits.small_step_ns and 2 * int((has_slow > 0).sum()) < len(has_slow)


def _of_one_function(window: WindowView, long: Intervals) -> Intervals:
    """The stretches in the function that the longest, half of all, lie in, if these lie in one.

    It must have some in half of the steps. Only the longest of all are looked at.
    """
    longest = _longest_half(long)
    if longest is None:
        return intervals.empty()
    some = np.argsort(-long.lengths, kind="stable")[:_MOST_IN_A_FUNCTION]
    frames = [window.frame_over(int(long.starts[at]), int(long.ends[at])) for at in some]
    if frames[0] is None or set(frames[: len(longest)]) != {frames[0]}:
        return intervals.empty()
    kept = some[[frame == frames[0] for frame in frames]]
    found = intervals.merge(long.starts[kept], long.ends[kept])
    graph = window.graph
    in_steps = intervals.covered(found, graph.step_starts_ns, graph.step_ends_ns) > 0
    return found if 2 * int(in_steps.sum()) >= len(in_steps) else intervals.empty()


def _running_share(subject: Subject, queued_ns: int) -> float:
    """Of the time in which the training thread can run, how much it does; 0 where unknown.

    It loses its CPU as often in one piece of work as in another, so this holds for each of them.
    """
    if subject.steps is None:
        return 0.0
    recorded, usual = subject.steps.recorded_host, subject.steps.host
    cpu_ns = recorded.cpu_ns or usual.cpu_ns or 0
    return cpu_ns / max(1, cpu_ns + queued_ns)


def _not_python_ns(subject: Subject, window: WindowView) -> tuple[int, int]:
    """What kept the training thread from running Python in a recorded step, as far as known.

    Its wait for a CPU, and the garbage collector's pauses, by the step record. Pauses that the
    trace has as well are no part of the stretches, and those that a GPU may have waited for promise
    nothing elsewhere.
    """
    if subject.steps is None:
        return 0, 0
    recorded, usual = subject.steps.recorded_host, subject.steps.host
    queued_ns = recorded.queued_ns or usual.queued_ns or 0
    if usual.is_on_device or len(window.graph.host.of(HostCause.GARBAGE_COLLECTION)):
        return queued_ns, 0
    return queued_ns, recorded.gc_ns or usual.gc_ns


def _stretches(window: WindowView, least_ns: int, has_peers: bool) -> Intervals:
    graph = window.graph
    mine = (~graph.is_gpu) & (graph.lane == graph.main_lane)
    works = intervals.merge(graph.start_ns[mine], graph.end_ns[mine])
    known = graph.host.of(*(set(CAUSES) - set(UNNAMED)), lanes=(graph.main_lane,))
    plain = intervals.difference(works, known)
    plain = intervals.difference(plain, _synchronising_calls(window, plain, has_peers))
    plain = intervals.difference(plain, _in_engine(window))
    plain = intervals.difference(plain, _in_the_recorder(window))
    plain = intervals.difference(plain, slow_epoch_start.between_epochs(window, least_ns))
    long = plain.lengths >= least_ns
    return intervals.merge(plain.starts[long], plain.ends[long])


def _in_engine(window: WindowView) -> Intervals:
    """When the main thread waits in autograd's engine, whose call is a frame but runs no Python.

    Hooks and functions written in Python have frames of their own inside it.
    """
    is_frame = pl.col("category") == "python_function"
    is_engine = pl.col("name").str.starts_with(_ENGINE)
    engine = window.spans(window.main_spans(is_frame & is_engine))
    if not len(engine):
        return engine
    others = window.main_events(is_frame & ~is_engine)
    inside = others[intervals.contains(engine, times_of(window.trace, others)[0])]
    return intervals.difference(engine, intervals.merge(*times_of(window.trace, inside)))


def _in_the_recorder(window: WindowView) -> Intervals:
    is_own = pl.col("name").str.contains(_OF_THE_RECORDER)
    return window.spans(window.main_spans((pl.col("category") == "python_function") & is_own))


def _synchronising_calls(window: WindowView, plain: Intervals, has_peers: bool) -> Intervals:
    """Where the main thread may be waiting for other ranks, of which it shows nothing itself."""
    name = pl.col("name")
    mine = window.host_events(
        name.str.starts_with(_COLLECTIVE) | name.is_in([*_SYNCHRONISING, _DATA_PARALLEL])
    ).filter(pl.col("lane_id") == window.graph.main_lane)
    waits = intervals.empty()
    if not shows_collectives(window.trace):
        # Whoever calls a collective on the CPU waits for it as soon as it has been handed over.
        # Where the thread that does it notes it, the wait is known and was taken out before.
        called = mine.filter(name.str.starts_with(_COLLECTIVE))["end_ns"].to_numpy()
        follows = np.isin(plain.starts, called)
        waits = intervals.merge(plain.starts[follows], plain.ends[follows])
    if has_peers or (mine["name"] == _DATA_PARALLEL).any():
        phases = mine.filter(name.is_in(_SYNCHRONISING))
        spans = intervals.merge(phases["start_ns"].to_numpy(), phases["end_ns"].to_numpy())
        waits = intervals.union(waits, spans)
    return waits


def _is_one_phase(subject: Subject, stretches_ns: int) -> bool:
    """Whether a phase that `slow-phase` reports has at least half of the stretches in a step.

    Two parts of a step that are longer together than the step share what they exceed it by.
    """
    if subject.steps is None:
        return False
    for phase in slow_phase.dominating(subject, subject.steps):
        phase_ns = phase.total_ns / len(subject.steps.steps)
        if 2 * (stretches_ns + phase_ns - subject.steps.mean_ns) >= stretches_ns:
            return True
    return False


def _where(window: WindowView, long: Intervals, longest: int) -> tuple[str, str | None]:
    """Where the longest stretch lies, and what has the longest ones, half of all, if one has."""
    ran = MainThreadWork(window)
    place = _place(ran, int(long.starts[longest]), int(long.ends[longest]))
    half = _longest_half(long)
    name = None if half is None else _name_of(ran, half)
    return place, None if name is None else f"in {name}"


def _longest_half(long: Intervals) -> Intervals | None:
    """The longest stretches that are half of all; None where these are many.

    Many short ones have no function in common, so only a few are looked at.
    """
    order = np.argsort(-long.lengths, kind="stable")
    half = int(np.searchsorted(2 * np.cumsum(long.lengths[order]), long.total_ns)) + 1
    if half > _MOST_LOOKED_AT:
        return None
    return intervals.merge(long.starts[order[:half]], long.ends[order[:half]])


def _name_of(ran: MainThreadWork, stretches: Intervals) -> str | None:
    """The function or range in which all of some stretches lie."""
    names = {
        ran.around(int(start), int(end))
        for start, end in zip(stretches.starts, stretches.ends, strict=True)
    }
    return names.pop() if len(names) == 1 else None


def _place(ran: MainThreadWork, start_ns: int, end_ns: int) -> str:
    """Where a stretch lies: in what, else between which operators."""
    name = ran.around(start_ns, end_ns)
    if name is not None:
        return f"in {name}"
    parts = [f"after {name}" for name in ran.last_before(start_ns)]
    parts += [f"before {name}" for name in ran.first_after(end_ns)]
    return " and ".join(parts)
