"""The same training with one thing fixed: what each finding and each what-if question assumes.

A fix of a finding does exactly what the finding's rule says that its saving assumes:

synchronisation: blocking calls (`Read`, `Synchronize`, and the wait for a blocking copy from pinned
    memory) do not wait; the copies stay.
pageable-copies: copies from pageable memory leave pinned memory without blocking, large ones as
    fast as pinned memory allows.
exposed-copies: beyond that, copies take no time on the device.
launch-bound: operators, launches and other calls of the runtime take no time on the host
    (`LAUNCH_FACTOR`); Python between them, waits and the device's work stay.
many-small-kernels: kernels under 10 µs other than matrix products, and their operators and calls on
    the host, take half.
cpu-bound-python: stretches of Python of 95 µs or more take no time: whoever calls 100 µs long does
    not know to the microsecond what recording added to one.
garbage-collector: there are no pauses.
allocator-churn: there is no cudaMalloc and no cudaFree.
exposed-communication: collectives take no time once all ranks have arrived. Where a rank comes
    late, it is on time first, and the fix is what communication costs beyond that.
    `without_communication` of the program as it is is what a finding promises that does not assume
    ranks on time.
full-precision-matmuls: FP32 products whose shapes are recorded run at 60 % of the device's peak in
    TF32 (an eighth of their time: see `trace`); others take half.
unfused-elementwise: each run of elementwise kernels of 10 µs or more is one kernel, launched once,
    that takes half of their time.
input-bound: batches are always ready, and take the main thread `take_ns`. `with_workers` is what a
    finding that names a number of workers promises: that many, which live on from epoch to epoch.
slow-epoch-start: with a step record, workers live on from epoch to epoch, and the sampler takes no
    time; without one, the main thread begins iterators in no time.
late-rank: the late rank does what the others do; where the others are called late (`on_time`), they
    do what it does.

What-if questions take one thing away: see `questions`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from tests.support.simulator.program import (
    US,
    Collective,
    Collector,
    Copy,
    Free,
    Graph,
    Kernels,
    Loader,
    Malloc,
    Op,
    Program,
    Python,
    Read,
    Synchronize,
    changed,
    of_rank,
)

LAUNCH_FACTOR = 0.0
"""Of the cost of dispatch and launches, what is left: as the rule `launch-bound` assumes."""
SMALL_NS = 10 * US
LARGE_BYTES = 1 << 20
LONG_PYTHON_NS = 95 * US
FP32 = "fp32"
ELEMENTWISE = "elementwise"
PRODUCTS = ("gemm", FP32)


def with_body(program: Program, change: Callable[[Op], Op | None]) -> Program:
    """The program with its operations replaced, those of the late rank too."""
    late = program.late
    if late is not None:
        late = replace(late, before=changed(late.before, change))
    return replace(program, body=changed(program.body, change), late=late)


def _no_wait(op: Op) -> Op:
    if isinstance(op, Copy) and op.is_pinned:
        return replace(op, is_blocking=False)
    return replace(op, waits=False) if isinstance(op, Read | Synchronize) else op


def _no_wait_at_all(op: Op) -> Op:
    if isinstance(op, Copy):
        return replace(op, is_blocking=False)
    return replace(op, waits=False) if isinstance(op, Free) else _no_wait(op)


def _pinned(program: Program) -> Program:
    speed = program.machine.pinned_bytes_per_ns

    def pinned(op: Op) -> Op:
        if not isinstance(op, Copy) or op.is_pinned:
            return op
        dur_ns = op.dur_ns
        if op.size >= LARGE_BYTES:
            dur_ns = min(dur_ns, math.ceil(op.size / speed))
        return replace(op, is_pinned=True, is_blocking=False, dur_ns=dur_ns)

    return with_body(program, pinned)


def _no_copies(op: Op) -> Op:
    return replace(op, dur_ns=0) if isinstance(op, Copy | Read) else op


def _without(*kinds: type[Op]) -> Callable[[Op], Op | None]:
    return lambda op: None if isinstance(op, kinds) else op


def _half_of_small(op: Op) -> Op:
    if isinstance(op, Kernels) and op.dur_ns < SMALL_NS and op.kind not in PRODUCTS:
        # Half as many operators: half of the host's time as well.
        return replace(op, count=op.count // 2)
    return op


def _no_long_python(op: Op) -> Op | None:
    return None if isinstance(op, Python) and op.dur_ns >= LONG_PYTHON_NS else op


def _no_communication(op: Op) -> Op:
    return replace(op, dur_ns=0) if isinstance(op, Collective) else op


def faster_kind(kind: str, factor: int) -> Callable[[Op], Op]:
    """A change that lets kernels of a kind run so many times as fast."""

    def faster(op: Op) -> Op:
        if isinstance(op, Kernels | Graph) and op.kind == kind:
            return replace(op, dur_ns=op.dur_ns // factor)
        return op

    return faster


def _fused(op: Op) -> Op:
    if isinstance(op, Kernels) and op.kind == ELEMENTWISE and op.dur_ns >= SMALL_NS:
        whole = op.count * op.dur_ns
        return replace(op, count=1, dur_ns=max(op.dur_ns, whole // 2))
    return op


def cheap_launches(program: Program, factor: float = LAUNCH_FACTOR) -> Program:
    """The program with dispatch and launches at a share of their cost."""

    def cheaper(op: Op) -> Op:
        if isinstance(op, Kernels):
            before, after = round(op.before_ns * factor), round(op.after_ns * factor)
            return replace(op, before_ns=before, after_ns=after)
        if isinstance(op, Graph):
            return replace(op, call_ns=round(op.call_ns * factor))
        return op

    machine = replace(
        program.machine,
        call_ns=round(program.machine.call_ns * factor),
        event_call_ns=round(program.machine.event_call_ns * factor),
    )
    return replace(with_body(program, cheaper), machine=machine)


def with_workers(program: Program, workers: int) -> Program:
    """The program with loaders of so many workers on all ranks, which live on."""
    loader, late = program.loader or Loader(), program.late
    if late is not None and late.loader is not None:
        own = replace(late.loader, workers=workers, is_persistent=True)
        late = replace(late, loader=own)
    loader = replace(loader, workers=workers, is_persistent=True)
    return replace(program, loader=loader, late=late)


def without_input_wait(program: Program) -> Program:
    """The program with batches that are always ready; iterators begin as before."""
    if program.loader is None:
        return program
    loader = replace(program.loader, has_no_cost=True)
    late = program.late and replace(program.late, loader=None)
    return replace(program, loader=loader, late=late)


def with_persistent_workers(program: Program) -> Program:
    """The program with workers that live on from epoch to epoch."""
    return with_workers(program, (program.loader or Loader()).workers)


def _with_quick_epoch_starts(program: Program) -> Program:
    """The program with workers that live on, and a sampler that takes no time."""
    if program.loader is None or not program.loader.epoch:
        return program
    return replace(program, loader=replace(program.loader, is_persistent=True, sampler_ns=0))


def _without_iterators(program: Program) -> Program:
    """The program with epochs whose iterators the main thread begins in no time.

    A trace shows no event there, and so Python: torch marks `__next__` alone. The first batch comes
    as long after it as before.
    """
    loader = program.loader
    if loader is None:
        return program
    ready_ns = max(0, loader.worker_start_ns - (loader.workers - 1) * loader.start_ns)
    at_once = replace(loader, sampler_ns=0, start_ns=0, worker_start_ns=ready_ns)
    return replace(program, loader=at_once)


def on_time(program: Program, rank: int | None = None) -> Program:
    """The program with all ranks alike.

    Args:
        program: The program.
        rank: The rank that is called late, which does as others do then; default: the one planted.
    """
    late = program.late
    if late is None or rank in (None, late.rank):
        return replace(program, late=None)
    like_it = of_rank(program, late.rank)
    return replace(program, body=like_it.body, loader=like_it.loader, late=None)


def fixes(program: Program) -> dict[str, tuple[Program, Program]]:
    """By finding, the program that its saving is counted from, and the program with the fix.

    A fix of what the program lacks leaves it as it is.
    """
    pinned = _pinned(program)
    same = on_time(program)
    found = {
        "launch-bound": (program, cheap_launches(program)),
        "synchronisation": (program, with_body(program, _no_wait)),
        "pageable-copies": (program, pinned),
        "exposed-copies": (pinned, with_body(pinned, _no_copies)),
        "many-small-kernels": (program, with_body(program, _half_of_small)),
        "cpu-bound-python": (program, with_body(program, _no_long_python)),
        "garbage-collector": (program, with_body(program, _without(Collector))),
        "allocator-churn": (program, with_body(program, _without(Malloc, Free))),
        "exposed-communication": (same, without_communication(same)),
        "full-precision-matmuls": (
            program,
            with_body(program, faster_kind(FP32, 8 if program.recording.has_shapes else 2)),
        ),
        "unfused-elementwise": (program, with_body(program, _fused)),
        "input-bound": (program, without_input_wait(program)),
        "late-rank": (program, same),
    }
    with_record = program.recording.has_record
    quick_starts = _with_quick_epoch_starts if with_record else _without_iterators
    return found | {"slow-epoch-start": (program, quick_starts(program))}


def without_communication(program: Program) -> Program:
    """The program whose collectives take no time once all ranks have arrived, late ones too."""
    return with_body(program, _no_communication)


def questions(program: Program) -> dict[str, Program]:
    """By what-if question, the program without that.

    Each is a cause of `show what-if`; "half of the computation" is a replay in which computing
    kernels take half as long.
    """
    machine = replace(program.machine, call_ns=0, event_call_ns=0)

    def no_dispatch(op: Op) -> Op:
        return replace(op, before_ns=0, after_ns=0) if isinstance(op, Kernels) else op

    def no_python(op: Op) -> Op | None:
        if isinstance(op, Python):
            return None
        return replace(op, gap_ns=0) if isinstance(op, Kernels) else op

    def no_compute(op: Op) -> Op:
        return replace(op, dur_ns=0) if isinstance(op, Kernels | Graph) else op

    def half_compute(op: Op) -> Op:
        return replace(op, dur_ns=op.dur_ns // 2) if isinstance(op, Kernels | Graph) else op

    found = {
        "launch": replace(program, machine=machine),
        "dispatch": with_body(program, no_dispatch),
        "python": _without_iterators(with_body(program, no_python)),
        "waiting for the GPU": with_body(program, _no_wait_at_all),
        "communication": without_communication(program),
        "copies and fills": with_body(program, _no_copies),
        "computation on the GPU": with_body(program, no_compute),
        "half of the computation": with_body(program, half_compute),
        "garbage collection": with_body(program, _without(Collector)),
    }
    ready = without_input_wait(program)
    if ready.loader is not None:
        # Without the calls that fetch batches, which a trace shows whole.
        found["input"] = replace(ready, loader=replace(ready.loader, take_ns=0, end_ns=0))
    return found
