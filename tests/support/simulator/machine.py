"""Runs a program: host, launch queue, streams, loader and collectives, each with its time.

Work is given its time when it is launched, for all that it waits for was launched before it: the
work before it on its stream, and what its stream was made to wait for. A collective alone depends
on what is not known yet, the other ranks' arrivals: ranks are generators that yield their arrival
and get the end.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace

from tests.support.simulator.batches import Batches
from tests.support.simulator.program import (
    COMM,
    COMPUTE,
    MS,
    US,
    Collective,
    Collector,
    Copy,
    Free,
    Graph,
    Kernels,
    Loader,
    Malloc,
    Once,
    OnThread,
    Op,
    Program,
    Python,
    Range,
    Read,
    Synchronize,
    WaitForCollectives,
    changed,
    of_rank,
)

MAIN = 1000
AUTOGRAD = 1001
BETWEEN_STEPS_NS = 20 * US
"""Python between two steps, such as the loop itself."""


@dataclass(frozen=True)
class StepTimes:
    """When a step ran.

    Attributes:
        number: Its number.
        start_ns: Its start on the host.
        end_ns: Its end on the host.
        device_end_ns: The end of all work launched up to its end.
        mark_ns: When an event would be done that is recorded on the compute stream at its end.
        wait_ns: Wait for its input: the batch, and the beginning of an epoch.
        epoch_start_ns: What the beginning of an epoch took: its iterator, and its first batch.
        sampler_ns: The part of it that the sampler took.
        worker_start_ns: The part of it in which the loader's workers were started.
        gc_ns: Pauses of the collector.
    """

    number: int
    start_ns: int
    end_ns: int
    device_end_ns: int
    mark_ns: int
    wait_ns: int
    epoch_start_ns: int
    sampler_ns: int
    worker_start_ns: int
    gc_ns: int


Entry = tuple[object, ...]
"""One record of the log, whose first element says what it is; see `trace.py`."""


@dataclass
class Timeline:
    """What a rank did.

    Attributes:
        program: Its program.
        rank: Its number.
        steps: All steps that were run.
        log: What happened in the recorded steps, and in some before them.
        started_ns: When the recording began.
        stopped_ns: When it ended.
        others: The other ranks that differ from this one.
    """

    program: Program
    rank: int
    steps: list[StepTimes] = field(default_factory=list)
    log: list[Entry] = field(default_factory=list)
    started_ns: int = 0
    stopped_ns: int = 0
    others: tuple[Timeline, ...] = ()

    def mean_step_ns(self, first: int, last: int) -> float:
        """Mean step from one step to another, both included, by the ends on device or host."""
        before, end = self.steps[first - 1], self.steps[last]
        return (_end(end) - _end(before)) / (last - first + 1)


def _end(step: StepTimes) -> int:
    return step.device_end_ns or step.end_ns


(
    _KERNELS,
    _PYTHON,
    _READ,
    _SYNC,
    _COPY,
    _COLLECTIVE,
    _JOIN,
    _GRAPH,
    _GC,
    _MALLOC,
    _FREE,
    _ONCE,
    _ENTER,
    _LEAVE,
    _OPEN,
    _CLOSE,
) = range(16)


def _compiled(body: tuple[Op, ...], factor: float) -> list[tuple[int, int, int, Op, float]]:
    """Flat instructions: code, every, offset, operation, factor of host times."""
    made: list[tuple[int, int, int, Op, float]] = []
    codes = {
        Kernels: _KERNELS,
        Python: _PYTHON,
        Read: _READ,
        Synchronize: _SYNC,
        Copy: _COPY,
        Collective: _COLLECTIVE,
        WaitForCollectives: _JOIN,
        Graph: _GRAPH,
        Collector: _GC,
        Malloc: _MALLOC,
        Free: _FREE,
        Once: _ONCE,
    }
    for op in body:
        if isinstance(op, OnThread):
            made.append((_ENTER, 1, 0, op, factor))
            made += _compiled(op.body, factor)
            made.append((_LEAVE, 1, 0, op, factor))
        elif isinstance(op, Range):
            made.append((_OPEN, 1, 0, op, factor))
            made += _compiled(op.body, factor)
            made.append((_CLOSE, 1, 0, op, factor))
        else:
            every, offset = getattr(op, "every", 1), getattr(op, "offset", 0)
            made.append((codes[type(op)], every, offset, op, factor))
    return made


class _Rank:
    """One rank: its clock, its streams and its log."""

    def __init__(self, program: Program, rank: int) -> None:
        self.whole = program
        self.program = of_rank(program, rank)
        self.timeline = Timeline(program, rank)
        self.plain = _compiled(self.program.body, 1.0)
        self.slowed = _compiled(self.program.body, program.recording.host_factor)
        self.starts: dict[int, list[int]] = {}
        self.free: dict[int, int] = {}
        loader = self.program.loader
        self.batches = Batches(loader) if loader is not None and loader.workers else None

    def run(self, *, record: bool) -> Generator[tuple[int, int], int, None]:
        """Run steps for ever; yields (arrival, transfer) of collectives, and (-1, 0) after a step.

        Args:
            record: Whether the steps that `recording` names are recorded.
        """
        machine, recording = self.program.machine, self.program.recording
        starts, free = self.starts, self.free
        loader = self.program.loader
        depth, wake, latency = machine.queue, machine.wake_ns, machine.latency_ns
        call_plain = machine.call_ns
        log_all = self.timeline.log
        log: list[Entry] | None = None
        host, device_end, step = 10 * MS, 0, -1
        thread = MAIN
        opened: list[int] = []
        last = recording.first + recording.steps
        # What was launched earlier may still run when the recording begins.
        log_from = max(0, recording.first - 1 - math.ceil(depth / max(1, self._launches())))
        is_slow = False
        in_epoch = 0
        while True:
            step += 1
            if record and step == recording.first:
                if recording.start == "drained":
                    host = max(host, max(free.values(), default=0))
                host += recording.pause_ns
                self.timeline.started_ns = host
                is_slow = True
            if record and step == last:
                ends = max(free.values(), default=0)
                returned = max(host + call_plain, ends + wake if ends > host else 0)
                log_all.append(("sync", MAIN, "cudaDeviceSynchronize", host, returned, None))
                self.timeline.stopped_ns = returned
                host = returned + recording.pause_ns
                log, is_slow = None, False
            if record and step == log_from:
                log = log_all
            slow = recording.host_factor if is_slow else 1.0
            call_ns = round(call_plain * slow)
            event_ns = round(machine.event_call_ns * slow)
            step_start, wait_ns, gc_ns, workers_ns = host, 0, 0, 0
            sampler_ns, epoch_ns = 0, 0
            if loader is not None:
                if self.batches is None:
                    if loader.epoch and step and step % loader.epoch == 0:
                        if log is not None:
                            log.append(("batch", MAIN, False, host, host + loader.end_ns))
                        host += loader.end_ns
                        sampler_ns = epoch_ns = loader.sampler_ns
                        host += sampler_ns
                    begin = host
                    if loader.has_no_cost:
                        host += loader.take_ns
                    else:
                        host += loader.waiting_ns + loader.cpu_ns
                else:
                    if step == 0 or (loader.epoch and in_epoch == loader.epoch):
                        if step:
                            # torch records the call that ends an epoch like all others
                            if log is not None:
                                log.append(("batch", MAIN, True, host, host + loader.end_ns))
                            host += loader.end_ns
                        began, sampler_ns = host, loader.sampler_ns
                        host = self.batches.begin_epoch(host)
                        in_epoch, epoch_ns = 0, host - began
                        if not loader.is_persistent or step == 0:
                            workers_ns = epoch_ns - sampler_ns
                        if log is not None:
                            log.append(("frame", MAIN, "<built-in function iter>", began, host))
                    begin = host
                    ready = host if loader.has_no_cost else self.batches.take(host)
                    if ready > host:
                        host = ready + wake
                    host += loader.take_ns
                    self.batches.took(host)
                    in_epoch += 1
                wait_ns = epoch_ns + host - begin
                epoch_ns = wait_ns if epoch_ns or in_epoch == 1 else 0
                if log is not None:
                    log.append(("batch", MAIN, bool(loader.workers), begin, host))
            for code, every, offset, op, factor in self.slowed if is_slow else self.plain:
                if every != 1 and step % every != offset:
                    continue
                if code == _KERNELS:
                    before, after = op.before_ns, op.after_ns
                    gap = op.gap_ns
                    if factor != 1.0:
                        before, after = round(before * factor), round(after * factor)
                        gap = round(gap * factor)
                    stream, dur = op.stream, op.dur_ns
                    began_on = starts.setdefault(stream, [])
                    stream_free = free.get(stream, 0)
                    issued = len(began_on)
                    if log is None:
                        beyond = after + gap
                        for _ in range(op.count):
                            host += before
                            if issued >= depth:
                                room = began_on[issued - depth]
                                if room > host:
                                    host = room
                            issued += 1
                            host += call_ns
                            at = host + latency
                            if stream_free > at:
                                at = stream_free
                            began_on.append(at)
                            stream_free = at + dur
                            host += beyond
                    else:
                        kind = op.kind
                        for _ in range(op.count):
                            op_start = host
                            host += before
                            call = host
                            if issued >= depth:
                                room = began_on[issued - depth]
                                if room > host:
                                    host = room
                            issued += 1
                            host += call_ns
                            at = host + latency
                            if stream_free > at:
                                at = stream_free
                            began_on.append(at)
                            stream_free = at + dur
                            log.append(
                                ("kernel", thread, kind, op_start, call, host, host + after, stream,
                                 at, stream_free)
                            )  # fmt: skip
                            host += after + gap
                    free[stream] = stream_free
                    if stream_free > device_end:
                        device_end = stream_free
                elif code == _PYTHON:
                    began = host
                    host += round(op.dur_ns * factor)
                    if log is not None:
                        log.append(("frame", thread, op.name, began, host))
                elif code == _GC:
                    began = host
                    host += op.dur_ns
                    gc_ns += op.dur_ns
                    if log is not None and op.is_recorded:
                        log.append(("gc", thread, began, host))
                elif code in (_READ, _COPY):
                    is_read = code == _READ
                    stream = COMPUTE if is_read else op.stream
                    waits = op.waits if is_read else op.is_blocking
                    op_start = host
                    host += round(3 * US * factor)
                    call = host
                    host = self._room(stream, host) + call_ns
                    at = max(host + latency, free.get(stream, 0))
                    end = at + op.dur_ns
                    starts.setdefault(stream, []).append(at)
                    free[stream] = end
                    if stream != COMPUTE:
                        free[COMPUTE] = max(free.get(COMPUTE, 0), end)
                    device_end = max(device_end, end)
                    sync: tuple[int, int] | None = None
                    if waits and op.in_call:
                        host = max(host, end + wake)
                    call_end = host
                    if waits and not op.in_call:
                        host = max(host + call_ns, end + wake)
                        sync = (call_end, host)
                    if stream != COMPUTE:
                        host += 2 * event_ns
                    host += round(1 * US * factor)
                    if log is not None:
                        log.append(
                            ("read" if is_read else "copy", thread, op, op_start, call, call_end,
                             sync, host, stream, at, end, event_ns)
                        )  # fmt: skip
                elif code == _SYNC:
                    until = free.get(COMPUTE, 0)
                    if op.whole_device:
                        until = max(free.values(), default=0)
                    began = host
                    if op.waits:
                        host = max(host + call_ns, until + wake if until > host else 0)
                        if log is not None:
                            name = "Device" if op.whole_device else "Stream"
                            call_name = f"cuda{name}Synchronize"
                            log.append(("sync", thread, call_name, began, host, None))
                elif code == _COLLECTIVE:
                    op_start = host
                    host += round(10 * US * factor)
                    if op.after_compute:
                        events = (host, host + event_ns, host + 2 * event_ns)
                        host += 2 * event_ns
                        free[COMM] = max(free.get(COMM, 0), free.get(COMPUTE, 0))
                    else:
                        events = (host, host, host)
                    call = host
                    host = self._room(COMM, host) + call_ns
                    at = max(host + latency, free.get(COMM, 0))
                    starts.setdefault(COMM, []).append(at)
                    end = yield at, op.dur_ns
                    free[COMM] = end
                    device_end = max(device_end, end)
                    call_end = host
                    host += round(5 * US * factor)
                    if log is not None:
                        log.append(
                            ("collective", thread, op, op_start, events, call, call_end, host, at,
                             end)
                        )  # fmt: skip
                elif code == _JOIN:
                    began = host
                    host += 2 * event_ns
                    free[COMPUTE] = max(free.get(COMPUTE, 0), free.get(COMM, 0))
                    if log is not None:
                        log.append(("join", thread, began, began + event_ns, host))
                elif code == _GRAPH:
                    call = host
                    host = self._room(COMPUTE, host) + round(op.call_ns * factor)
                    at = max(host + latency, free.get(COMPUTE, 0))
                    starts.setdefault(COMPUTE, []).append(at)
                    end = at + op.count * op.dur_ns + (op.count - 1) * op.gap_ns
                    free[COMPUTE] = end
                    device_end = max(device_end, end)
                    if log is not None:
                        log.append(("graph", thread, op, call, host, at))
                elif code == _MALLOC:
                    began = host
                    host += round(op.dur_ns * factor)
                    if log is not None:
                        log.append(("call", thread, "cudaMalloc", began, host))
                elif code == _FREE:
                    began = host
                    if op.waits:
                        host = max(host, max(free.values(), default=0))
                    host += op.dur_ns
                    if log is not None:
                        log.append(("call", thread, "cudaFree", began, host))
                elif code == _ONCE:
                    if op.step == step:
                        began = host
                        host += op.dur_ns
                        if log is not None:
                            log.append(("once", thread, op.name, began, host))
                elif code == _ENTER:
                    opened.append(host)
                    thread = AUTOGRAD
                    host += round(op.handover_ns * factor)
                elif code == _LEAVE:
                    host += round(op.handover_ns * factor)
                    thread = MAIN
                    began = opened.pop()
                    if log is not None:
                        log.append(("backward", MAIN, began, host))
                elif code == _OPEN:
                    opened.append(host)
                else:
                    began = opened.pop()
                    if log is not None:
                        log.append(("range", thread, op.name, began, host))
            device_end = max(device_end, 0)
            if log is not None:
                log.append(("step", MAIN, step, step_start, host))
            host += BETWEEN_STEPS_NS
            self.timeline.steps.append(
                StepTimes(
                    step,
                    step_start,
                    host,
                    device_end,
                    max(host + latency, free.get(COMPUTE, 0)),
                    wait_ns,
                    epoch_ns,
                    sampler_ns,
                    workers_ns,
                    gc_ns,
                )
            )
            yield -1, step

    def _launches(self) -> int:
        return sum(
            op.count if isinstance(op, Kernels) else isinstance(op, Graph | Read | Copy)
            for _, _, _, op, _ in self.plain
        )

    def _room(self, stream: int, host: int) -> int:
        """When a launch on a stream finds room in its queue."""
        began_on = self.starts.get(stream, ())
        depth = self.program.machine.queue
        return max(host, began_on[-depth]) if len(began_on) >= depth else host


def _together(ranks: list[_Rank], *, record: bool) -> Iterator[int]:
    """Let ranks run beside each other; yields the number of each step that all have done."""
    running = [rank.run(record=record) for rank in ranks]
    sent: list[int | None] = [None] * len(ranks)
    while True:
        told = [
            next(one) if end is None else one.send(end)
            for one, end in zip(running, sent, strict=True)
        ]
        arrivals = [at for at, _ in told]
        assert (min(arrivals) < 0) == (max(arrivals) < 0), (
            "ranks do not launch the same collectives"
        )
        if arrivals[0] < 0:
            sent = [None] * len(ranks)
            yield told[0][1]
        else:
            sent = [max(arrivals) + told[0][1]] * len(ranks)


def _ranks(program: Program) -> list[_Rank]:
    """The ranks that differ: one of those that do the same, and the late one."""
    if program.late is None:
        return [_Rank(program, 0)]
    other = 0 if program.late.rank else 1
    return [_Rank(program, other), _Rank(program, program.late.rank)]


def simulate(program: Program) -> Timeline:
    """Run the training up to the end of what is recorded, and of the steps after it."""
    ranks = _ranks(program)
    recording = program.recording
    most = recording.first + recording.steps + max(1, recording.steps_after)
    for step in _together(ranks, record=True):
        if step + 1 >= most:
            break
    mine = ranks[0].timeline
    mine.others = tuple(rank.timeline for rank in ranks[1:])
    return mine


def period(program: Program) -> int:
    """After how many steps the training does the same again."""
    numbers = [1]
    for rank in _ranks(program):
        numbers += [every for _, every, *_ in rank.plain]
        loader = rank.program.loader
        if loader is not None:
            numbers += [max(1, loader.epoch), max(1, loader.workers)]
    return math.lcm(*numbers)


_TOLERANCE = 5e-4
_MOST_STEPS = 400


def steady_step_ns(program: Program, *, is_recorded: bool = False) -> float:
    """The mean step of the steady state.

    The training runs unrecorded, in blocks of whole periods, until two blocks agree to 0.05 %. A
    loader that is a little too slow has batches in stock for longer than that: its pace counts at
    once. So does that of a host that its devices catch up with, as where another rank began late.

    Args:
        program: The training.
        is_recorded: Whether host operations take as long as while they are recorded.
    """
    if is_recorded and program.recording.host_factor != 1.0:
        program = _slowed(program)
    ranks = _ranks(program)
    pace_ns = max(_loader_pace_ns(rank.program.loader) for rank in ranks)
    every = period(program)
    loader = program.loader
    if loader is not None and loader.workers > loader.cpus - 1:
        every = math.lcm(every, max(1, loader.cpus - 1))  # workers take turns on the CPUs
    block = every * max(1, math.ceil(12 / every))
    times = ranks[0].timeline
    before = 0.0
    for step in _together(ranks, record=False):
        if step and step % block == 0:
            hosts = (rank.timeline.steps for rank in ranks)
            slowest = max(one[step].end_ns - one[step - block].end_ns for one in hosts) / block
            mean = max(times.mean_step_ns(step - block + 1, step), slowest)
            if step > block and abs(mean - before) <= _TOLERANCE * mean:
                return max(mean, pace_ns)
            if step >= max(_MOST_STEPS, 4 * block):
                return max(mean, pace_ns)
            before = mean
    raise AssertionError


def _loader_pace_ns(loader: Loader | None) -> float:
    """The time per batch that workers keep up for ever; 0 where epochs end, or none is needed."""
    if loader is None or not loader.workers or loader.epoch or loader.has_no_cost:
        return 0.0
    cpu_ns = loader.cpu_ns + loader.send_ns
    return max((loader.waiting_ns + cpu_ns) / loader.workers, cpu_ns / max(1, loader.cpus - 1))


def _slowed(program: Program) -> Program:
    """The training with host times as they are while it is recorded, in all steps."""
    factor = program.recording.host_factor
    fields = ("before_ns", "after_ns", "gap_ns", "call_ns", "handover_ns")

    def slower(op: Op) -> Op:
        if isinstance(op, Graph):
            return replace(op, call_ns=round(op.call_ns * factor))
        if isinstance(op, Python | Malloc):
            return replace(op, dur_ns=round(op.dur_ns * factor))
        more = {name: round(getattr(op, name) * factor) for name in fields if hasattr(op, name)}
        return replace(op, **more) if more else op

    machine = replace(
        program.machine,
        call_ns=round(program.machine.call_ns * factor),
        event_call_ns=round(program.machine.event_call_ns * factor),
    )
    return replace(program, body=changed(program.body, slower), machine=machine)
