"""What a training consists of. Times are integer nanoseconds; nothing is random here.

A `Program` is one rank's training: the operations of a step, its loader and its machine. Host
operations are done one after another: the thread of backward works while the main thread waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

US = 1_000
MS = 1_000_000
COMPUTE = 7
COPY = 13
COMM = 20


@dataclass(frozen=True)
class Kernels:
    """Operators that launch one kernel each.

    Attributes:
        count: How many.
        dur_ns: Duration of each kernel.
        kind: A key of `trace.KINDS`, for names.
        before_ns: Host time of the operator before its launching call.
        after_ns: Host time of the operator after it.
        gap_ns: Python between one operator and the next.
        stream: Where the kernels run.
    """

    count: int
    dur_ns: int
    kind: str = "gemm"
    before_ns: int = 5 * US
    after_ns: int = 2 * US
    gap_ns: int = 0
    stream: int = COMPUTE


@dataclass(frozen=True)
class Graph:
    """One launch of a captured CUDA graph: kernels one after another, in one place of the queue."""

    count: int
    dur_ns: int
    gap_ns: int = 1 * US
    kind: str = "gemm"
    call_ns: int = 20 * US


@dataclass(frozen=True)
class Python:
    """Python outside operators; `every` steps, in those whose number leaves `offset`."""

    dur_ns: int
    name: str = "train.py(20): bookkeeping"
    every: int = 1
    offset: int = 0


@dataclass(frozen=True)
class Collector:
    """A pause of the garbage collector; torch before 2.9 does not record it."""

    dur_ns: int
    every: int = 1
    offset: int = 0
    is_recorded: bool = True


@dataclass(frozen=True)
class Read:
    """`tensor.item()`: a copy to the host that the host waits for.

    Attributes:
        waits: Whether the host waits.
        in_call: Whether it waits in `cudaMemcpyAsync` itself, or in a `cudaStreamSynchronize`.
        every: The steps in which it happens.
        offset: The remainder of their numbers.
    """

    waits: bool = True
    in_call: bool = False
    every: int = 1
    offset: int = 0
    dur_ns: int = 1_500


@dataclass(frozen=True)
class Synchronize:
    """`torch.cuda.synchronize()`, of the whole device or of the compute stream."""

    waits: bool = True
    whole_device: bool = True
    every: int = 1
    offset: int = 0


@dataclass(frozen=True)
class Copy:
    """A copy of input to the device.

    Attributes:
        size: Bytes.
        dur_ns: How long it runs on the device.
        is_pinned: Whether the host's memory is pinned.
        is_blocking: Whether the host waits for it.
        in_call: Whether it waits in `cudaMemcpyAsync` itself, or in a `cudaStreamSynchronize`.
        stream: Where it runs. Work on the compute stream after it waits for it.
    """

    size: int
    dur_ns: int
    is_pinned: bool = True
    is_blocking: bool = False
    in_call: bool = False
    stream: int = COMPUTE


@dataclass(frozen=True)
class Malloc:
    """`cudaMalloc`."""

    dur_ns: int = 150 * US
    size: int = 1 << 30


@dataclass(frozen=True)
class Free:
    """`cudaFree`, which waits until the device is idle, and takes its own time then."""

    dur_ns: int = 100 * US
    size: int = 1 << 30
    waits: bool = True


@dataclass(frozen=True)
class Collective:
    """An all-reduce on the communication stream, after the compute work launched so far."""

    size: int
    dur_ns: int
    after_compute: bool = True


@dataclass(frozen=True)
class WaitForCollectives:
    """The compute stream waits for the collectives launched so far; the host does not."""


@dataclass(frozen=True)
class OnThread:
    """Operations that autograd's thread does, while the main thread waits for it."""

    body: tuple[Op, ...]
    handover_ns: int = 10 * US


@dataclass(frozen=True)
class Range:
    """Operations inside an annotation."""

    name: str
    body: tuple[Op, ...]


@dataclass(frozen=True)
class Once:
    """A call that takes long in one step only: lazy loading, a first launch, the allocator.

    Attributes:
        name: The call, such as "cuModuleLoadData"; of "cudaLaunchKernel" it launches a kernel.
        dur_ns: Its duration.
        step: The step.
    """

    name: str
    dur_ns: int
    step: int = 0


Op = (
    Kernels
    | Graph
    | Python
    | Collector
    | Read
    | Synchronize
    | Copy
    | Malloc
    | Free
    | Collective
    | WaitForCollectives
    | OnThread
    | Range
    | Once
)


@dataclass(frozen=True)
class Loader:
    """A DataLoader, as torch's works: in order, `workers * prefetch` batches under way.

    Batch b is made by worker b modulo W. The main thread asks for batch b + W * prefetch when it
    takes batch b. A worker waits for storage, then works on a CPU; workers share the CPUs that the
    main thread leaves.

    Attributes:
        workers: `num_workers`; 0: the main thread makes the batches.
        waiting_ns: Part of the loading of a batch that waits for storage.
        cpu_ns: Part that works on a CPU.
        prefetch: `prefetch_factor`.
        cpus: CPUs of the machine; the main thread has one of them for itself.
        send_ns: What it takes a worker to hand a batch to the main process.
        take_ns: What it takes the main thread to receive one that is ready.
        epoch: Steps of an epoch; 0: it never ends.
        is_persistent: Whether workers live on from epoch to epoch.
        start_ns: What it takes the main thread to start one worker.
        worker_start_ns: What it takes a worker to get ready for its first batch.
        end_ns: What it takes the main thread to learn that an epoch has no more batches.
        sampler_ns: What the main thread does at each epoch's beginning, such as shuffling.
        spread: By how much batches differ: each takes (1 - spread) to (1 + spread) of the mean.
        has_no_cost: A loader whose batches are always there (a fix, never a real one).
    """

    workers: int = 2
    waiting_ns: int = 0
    cpu_ns: int = 500 * US
    prefetch: int = 2
    cpus: int = 8
    send_ns: int = 0
    take_ns: int = 30 * US
    epoch: int = 0
    is_persistent: bool = True
    start_ns: int = 20 * MS
    worker_start_ns: int = 100 * MS
    end_ns: int = 30 * US
    sampler_ns: int = 0
    spread: float = 0.0
    has_no_cost: bool = False


@dataclass(frozen=True)
class Machine:
    """Costs of the host and the device.

    Attributes:
        call_ns: A launching or other call of the runtime.
        event_call_ns: `cudaEventRecord` and `cudaStreamWaitEvent`.
        latency_ns: From the end of a launching call to the earliest start on the device.
        wake_ns: From the end of what the host waits for to the return of the waiting call.
        queue: Launches that a stream takes: one more waits in its call until the earliest starts.
        device: Its name.
        pinned_bytes_per_ns: How fast large copies from pinned memory are.
    """

    call_ns: int = 4 * US
    event_call_ns: int = 2 * US
    latency_ns: int = 5 * US
    wake_ns: int = 2 * US
    queue: int = 1022
    device: str = "NVIDIA A100-SXM4-80GB"
    pinned_bytes_per_ns: float = 24.0


@dataclass(frozen=True)
class Late:
    """What one rank has more to do than the others.

    Attributes:
        rank: Which.
        before: Operations before its step.
        kernel_factor: How many times as long its kernels take.
        loader: Its loader, if that differs.
    """

    rank: int = 1
    before: tuple[Op, ...] = ()
    kernel_factor: float = 1.0
    loader: Loader | None = None


@dataclass(frozen=True)
class Recording:
    """What is recorded.

    Attributes:
        first: First recorded step.
        steps: How many.
        host_factor: How many times as long host operations take while they are recorded.
        start: The device at the window's beginning: "running" (work launched earlier is recorded
            without its launch), "unseen" (it runs, but the file lacks it), or "drained" (the
            recorder let the device finish first).
        pause_ns: How long the recorder holds the main thread before the first recorded step.
        has_record: Whether a run directory with a step record is written.
        steps_after: Unrecorded steps after the window, for the step record.
        has_steps: Whether the profiler annotates steps.
        has_stacks: Whether Python frames are recorded.
        has_shapes: Whether shapes are recorded.
    """

    first: int = 6
    steps: int = 6
    host_factor: float = 1.0
    start: str = "running"
    pause_ns: int = 0
    has_record: bool = False
    steps_after: int = 0
    has_steps: bool = True
    has_stacks: bool = False
    has_shapes: bool = False


@dataclass(frozen=True)
class Program:
    """A training.

    Attributes:
        body: What a step does after it has its batch.
        loader: Where batches come from; None: the loop has no loader.
        machine: Host and device.
        recording: What is recorded.
        world_size: Ranks of the job. All do the same, but for a late one.
        late: The late rank.
        causes: What was planted, in words.
        seed: Where it came from.
    """

    body: tuple[Op, ...]
    loader: Loader | None = None
    machine: Machine = field(default_factory=Machine)
    recording: Recording = field(default_factory=Recording)
    world_size: int = 1
    late: Late | None = None
    causes: tuple[str, ...] = ()
    seed: int = -1


def changed(body: tuple[Op, ...], change: Callable[[Op], Op | None]) -> tuple[Op, ...]:
    """The operations with each of them, at any depth, replaced; None takes it away."""
    made: list[Op] = []
    for op in body:
        new: Op | None = op
        if isinstance(op, OnThread | Range):
            new = replace(op, body=changed(op.body, change))
        new = change(new)
        if new is not None:
            made.append(new)
    return tuple(made)


def flat(body: tuple[Op, ...]) -> list[Op]:
    """All operations at any depth, containers left out."""
    found: list[Op] = []
    for op in body:
        if isinstance(op, OnThread | Range):
            found += flat(op.body)
        else:
            found.append(op)
    return found


def of_rank(program: Program, rank: int) -> Program:
    """What one rank does."""
    late = program.late
    if late is None or rank != late.rank:
        return program
    factor = late.kernel_factor

    def longer(op: Op) -> Op:
        if isinstance(op, Kernels | Graph):
            return replace(op, dur_ns=round(op.dur_ns * factor))
        return op

    body = program.body if factor == 1.0 else changed(program.body, longer)
    return replace(program, body=(*late.before, *body), loader=late.loader or program.loader)
