"""Trainings at random, each with known causes planted, alone or in pairs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from tests.support.simulator.machine import period
from tests.support.simulator.program import (
    COPY,
    MS,
    US,
    Collective,
    Collector,
    Copy,
    Free,
    Graph,
    Kernels,
    Late,
    Loader,
    Malloc,
    Once,
    OnThread,
    Op,
    Program,
    Python,
    Range,
    Read,
    Recording,
    Synchronize,
    WaitForCollectives,
)


@dataclass
class _Draft:
    """A training that is being put together: the parts of a step, in order."""

    dice: random.Random
    work_ns: int
    layers: int
    before: list[Op]
    forward: list[list[Op]]
    between: list[Op]
    backward: list[list[Op]]
    after: list[Op]
    optimizer: list[Op]
    loader: Loader
    late: Late | None = None
    world_size: int = 1
    first: int | None = None

    def share(self, least: float, most: float) -> int:
        """A time: a random share of the step's GPU work."""
        return round(self.work_ns * self.dice.uniform(least, most))

    def somewhere(self) -> list[Op]:
        """A random place on the main thread."""
        return self.dice.choice(
            (self.before, self.dice.choice(self.forward), self.between, self.after)
        )


def _python(d: _Draft) -> None:
    """Python outside operators, in one stretch or several, in each step or some."""
    total = d.share(0.1, 1.5)
    pieces = d.dice.choice((1, 1, 3))
    for _ in range(pieces):
        length = max(150 * US, total // pieces)
        d.somewhere().append(Python(length, every=d.dice.choice((1, 1, 1, 2))))


def _input(d: _Draft) -> None:
    """Workers that cannot keep up, or nearly."""
    workers = d.dice.choice((1, 2, 4))
    load = round(d.share(0.6, 3.0) * workers)
    share = d.dice.choice((0.0, 0.2, 0.9))
    d.loader = replace(
        d.loader,
        workers=workers,
        cpu_ns=round(load * share),
        waiting_ns=round(load * (1 - share)),
        cpus=d.dice.choice((4, 8, 32)),
        spread=d.dice.choice((0.0, 0.0, 0.1)),
        send_ns=d.dice.choice((0, 1 * MS)),
    )


def _input_on_main(d: _Draft) -> None:
    """The main thread makes the batches."""
    load = d.share(0.1, 1.5)
    share = d.dice.choice((0.0, 0.9))
    d.loader = replace(
        d.loader, workers=0, cpu_ns=round(load * share), waiting_ns=round(load * (1 - share))
    )


def _synchronisation(d: _Draft) -> None:
    """Losses and metrics that the host reads."""
    form = d.dice.choice(("each layer", "last", "device", "some steps"))
    in_call = d.dice.random() < 0.5
    if form == "each layer":
        for layer in d.forward:
            layer.append(Read(in_call=in_call))
    elif form == "last":
        d.after.append(Read(in_call=in_call))
    elif form == "device":
        d.somewhere().append(Synchronize(whole_device=d.dice.random() < 0.5))
    else:
        d.after.append(Read(in_call=in_call, every=2))
    # What the host does before it has launched the next work.
    if d.dice.random() < 0.7:
        d.before.append(Kernels(d.dice.choice((10, 40)), 2 * US, "gemm", 40 * US, 10 * US))


def _pageable(d: _Draft) -> None:
    """Input from pageable memory."""
    count, total = d.dice.choice((1, 2, 4)), d.share(0.05, 0.6)
    in_call = d.dice.random() < 0.4
    for _ in range(count):
        length = max(5 * US, total // count)
        place = d.before if d.dice.random() < 0.8 else d.somewhere()
        place.append(Copy(length * 6, length, is_pinned=False, is_blocking=True, in_call=in_call))


def _pinned_blocking(d: _Draft) -> None:
    """Pinned memory, but `non_blocking=True` is missing."""
    length = d.share(0.05, 0.4)
    d.before.append(Copy(length * 24, length, is_pinned=True, is_blocking=True))


def _copies(d: _Draft) -> None:
    """Copies that run well, on the compute stream or on their own."""
    length = d.share(0.1, 0.5)
    stream = COPY if d.dice.random() < 0.4 else 7
    d.before.append(Copy(length * 24, length, stream=stream))


def _allocator(d: _Draft) -> None:
    """Memory that is got and given back in each step."""
    place = d.somewhere()
    place.append(Free(d.share(0.01, 0.1)))
    place.append(Malloc(d.share(0.01, 0.15)))


def _collector(d: _Draft) -> None:
    """Pauses of the garbage collector."""
    every = d.dice.choice((1, 1, 2, 3))
    d.somewhere().append(Collector(d.share(0.1, 0.8), every=every))


def _communication(d: _Draft) -> None:
    """All-reduces that nothing, or little, hides."""
    d.world_size = d.dice.choice((2, 2, 2, 3, 4, 8))
    buckets = d.dice.choice((1, 2, len(d.backward)))
    total = d.share(0.1, 1.0)
    waits = d.dice.random() < 0.4
    for layer in d.backward[-buckets:]:
        layer.append(Collective(64 << 20, max(20 * US, total // buckets)))
        if waits:
            layer.append(WaitForCollectives())
    d.after.append(WaitForCollectives())


def _late(d: _Draft) -> None:
    """One rank that comes late to each all-reduce."""
    if not d.world_size > 1:
        _communication(d)
        d.backward = [
            [replace(op, dur_ns=200 * US) if isinstance(op, Collective) else op for op in layer]
            for layer in d.backward
        ]
    form = d.dice.choice(("python", "compute", "collector", "input"))
    rank = d.dice.randrange(d.world_size)
    if form == "python":
        d.late = Late(rank, before=(Synchronize(), Python(d.share(0.1, 0.6))))
    elif form == "collector":
        d.late = Late(rank, before=(Synchronize(), Collector(d.share(0.1, 0.6))))
    elif form == "compute":
        d.late = Late(rank, kernel_factor=d.dice.uniform(1.1, 1.6))
    else:
        loader = replace(d.loader, workers=1, waiting_ns=d.share(1.2, 2.0), cpu_ns=0)
        d.late = Late(rank, loader=loader)


def _launch_bound(d: _Draft) -> None:
    """Operators that cost the host more than their kernels take."""
    cost = d.dice.uniform(1.0, 4.0)

    def dearer(op: Op) -> Op:
        if isinstance(op, Kernels) and op.kind == "gemm" and op.dur_ns > 10 * US:
            before = max(op.before_ns, round(op.dur_ns * cost * 0.7))
            return replace(op, before_ns=before, after_ns=round(op.dur_ns * cost * 0.2))
        return op

    d.forward = [[dearer(op) for op in layer] for layer in d.forward]
    d.backward = [[dearer(op) for op in layer] for layer in d.backward]


def _fp32(d: _Draft) -> None:
    """Matrix products in full FP32."""

    def full(op: Op) -> Op:
        return replace(op, kind="fp32") if isinstance(op, Kernels) and op.kind == "gemm" else op

    d.forward = [[full(op) for op in layer] for layer in d.forward]
    if d.dice.random() < 0.7:
        d.backward = [[full(op) for op in layer] for layer in d.backward]


def _small_kernels(d: _Draft) -> None:
    """Hundreds of kernels that take a few microseconds."""
    count = d.dice.choice((200, 400))
    d.somewhere().append(
        Kernels(count, d.dice.choice((3, 6)) * US, "small", d.dice.choice((2, 8)) * US, 1 * US)
    )


def _elementwise(d: _Draft) -> None:
    """Chains of elementwise kernels."""
    length = max(12 * US, d.share(0.2, 0.8) // (4 * d.layers))
    for layer in d.forward:
        layer.append(Kernels(4, length, "elementwise"))


def _full_queue(d: _Draft) -> None:
    """More launches than the queue takes, on a busy device."""
    count = d.dice.choice((1200, 2500))
    d.before.append(Kernels(count, d.dice.choice((15, 30)) * US, d.dice.choice(("gemm", "fp32")),
                            2 * US, 1 * US))  # fmt: skip


def _graph(d: _Draft) -> None:
    """Captured CUDA graphs."""
    d.before.append(Graph(d.dice.choice((20, 100)), d.dice.choice((10, 40)) * US))


def _gaps(d: _Draft) -> None:
    """Python of some microseconds between operators."""
    gap = d.dice.choice((10, 30, 60)) * US

    def more(op: Op) -> Op:
        return replace(op, gap_ns=gap) if isinstance(op, Kernels) else op

    d.forward = [[more(op) for op in layer] for layer in d.forward]


def _once(d: _Draft) -> None:
    """The recording begins with the first step, which loads, allocates and warms up."""
    d.first = 1
    d.before.append(Once("cuModuleLoadData", d.share(2, 30), 1))
    d.before.append(Once("cudaMalloc", d.share(0.5, 2), 1))
    if d.dice.random() < 0.5:
        d.somewhere().append(Once("cuLibraryLoadData", d.share(0.5, 3), 1))


def _epochs(d: _Draft) -> None:
    """Short epochs, each with a beginning that costs."""
    is_persistent = d.dice.random() < 0.5
    d.loader = replace(
        d.loader,
        epoch=d.dice.choice((3, 4, 6)),
        is_persistent=is_persistent,
        start_ns=2 * MS,
        worker_start_ns=d.share(0.3, 2.0),
        sampler_ns=d.share(0.5, 2.0) if is_persistent else 0,
    )


CAUSES: dict[str, Callable[[_Draft], None]] = {
    "python": _python,
    "gaps": _gaps,
    "input": _input,
    "input-on-main": _input_on_main,
    "synchronisation": _synchronisation,
    "pageable": _pageable,
    "pinned-blocking": _pinned_blocking,
    "copies": _copies,
    "allocator": _allocator,
    "collector": _collector,
    "communication": _communication,
    "late": _late,
    "launch-bound": _launch_bound,
    "fp32": _fp32,
    "small-kernels": _small_kernels,
    "elementwise": _elementwise,
    "full-queue": _full_queue,
    "graph": _graph,
    "once": _once,
    "epochs": _epochs,
}
ALONE_AND_PAIRS: tuple[tuple[str, ...], ...] = (
    (),
    *((name,) for name in CAUSES),
    *(pair for pair in combinations(CAUSES, 2) if pair != ("input", "input-on-main")),
)


def random_program(seed: int, causes: Sequence[str] | None = None) -> Program:
    """A training at random.

    Args:
        seed: The same seed is the same training.
        causes: What is planted; by default a cause alone or a pair, by the seed.
    """
    dice = random.Random(seed)
    planted = tuple(ALONE_AND_PAIRS[seed % len(ALONE_AND_PAIRS)] if causes is None else causes)
    layers = dice.choice((2, 4, 8))
    per_layer = dice.choice((2, 4, 8))
    host_ns = dice.choice((10, 16, 30)) * US
    kernel_ns = round(host_ns * 10 ** dice.uniform(0.05, 1.6))
    kernels = Kernels(per_layer, kernel_ns, "gemm", host_ns // 2, host_ns - host_ns // 2 - 4 * US)
    draft = _Draft(
        dice=dice,
        work_ns=3 * layers * per_layer * kernel_ns,
        layers=layers,
        before=[],
        forward=[[kernels] for _ in range(layers)],
        between=[],
        backward=[[replace(kernels, count=2 * per_layer)] for _ in range(layers)],
        after=[],
        optimizer=[Kernels(1, 200 * US, "optimizer", 60 * US)],
        loader=Loader(
            workers=dice.choice((2, 4)),
            waiting_ns=100 * US,
            cpu_ns=200 * US,
            start_ns=5 * MS,
            worker_start_ns=30 * MS,
        ),
    )
    # Launching costs come first: other causes are shares of the work.
    for name in sorted(planted, key=lambda one: one not in ("launch-bound", "full-queue")):
        CAUSES[name](draft)
        if name == "full-queue":
            draft.work_ns += sum(
                op.count * op.dur_ns for op in draft.before if isinstance(op, Kernels)
            )
    body: tuple[Op, ...] = (
        *draft.before,
        *(op for layer in draft.forward for op in layer),
        *draft.between,
        OnThread(tuple(op for layer in draft.backward for op in layer)),
        *draft.after,
        Range("Optimizer.step#AdamW.step", tuple(draft.optimizer)),
    )
    factor, has_record = 1.0, dice.random() < 0.25
    if has_record:
        factor = dice.choice((1.0, 1.0, 1.2, 1.5))
    program = Program(
        body,
        draft.loader,
        world_size=draft.world_size,
        late=draft.late,
        causes=planted,
        seed=seed,
    )
    # What a window does not show nobody can know: it holds whole periods of what recurs, two or
    # more, as one alone does not show that it recurs.
    every = period(program)
    least = max(dice.choice((4, 6, 8)), 2 * every if every > 1 else 0)
    if draft.first is not None:
        # Nor that batches are slow, while those made during the slow first step last.
        least += (draft.loader.prefetch + 1) * draft.loader.workers
    steps = every * math.ceil(least / every)
    recording = Recording(
        first=draft.first if draft.first is not None else dice.choice((8, 12, 24)),
        steps=steps,
        host_factor=factor,
        start=dice.choice(("running", "running", "unseen", "drained")),
        pause_ns=dice.choice((0, 0, draft.work_ns // 2)),
        has_record=has_record,
        steps_after=24 if has_record else 0,
        has_steps=dice.random() < 0.9,
        has_stacks=dice.random() < 0.3,
        has_shapes=dice.random() < 0.3,
    )
    return replace(program, recording=recording)
