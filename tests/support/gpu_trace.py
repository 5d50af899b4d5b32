"""Synthetic traces of GPU training, in Kineto's format, with known answers.

A trace is told as a small programme that the host runs; a simulated clock gives every call and
every piece of GPU work its time. Nothing is random: the same programme is the same file.

    t = GpuTrace()
    for _ in range(3):
        with t.step():
            t.data_wait(us(500))
            t.op("aten::mm", shapes=[[64, 64], [64, 64]]).launch("ampere_sgemm_128x64_nn", us(300))
            with t.op("aten::item"):
                t.sync()
    trace = t.load()

The clock
    Each host thread has its own time; `now` is that of the current one. A call takes time on the
    host (`call_ns` unless it says otherwise), and `python(…)` lets time pass without any event.
    An operator takes `before` ns before what is inside it and `after` ns afterwards.
    GPU work starts at the latest of: the end of its launching call plus `latency_ns`; the end of
    the work before it on its stream; the events that its stream was made to wait for. Its
    duration is given. A call that waits for the device returns `wake_ns` after what it waits for.
    So `work` (a list of `Work`) has the exact answer for everything on the GPU,
    and `calls` for every launching or blocking call.

All durations are integer nanoseconds; `us`, `ms` and `seconds` convert.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType

    from stepscope.trace.model import Trace

MAIN_THREAD = 1000
BACKWARD_THREAD = 1001
COMPUTE_STREAM = 7
COMM_STREAM = 20
COPY_STREAM = 13


def us(microseconds: float) -> int:
    """Microseconds as nanoseconds."""
    return round(microseconds * 1000)


def ms(milliseconds: float) -> int:
    """Milliseconds as nanoseconds."""
    return round(milliseconds * 1_000_000)


def seconds(value: float) -> int:
    """Seconds as nanoseconds."""
    return round(value * 1_000_000_000)


@dataclass(frozen=True)
class Work:
    """One piece of GPU work, as the simulated device did it."""

    name: str
    kind: str  # compute, communication, memcpy, memset
    device: int
    stream: int
    start_ns: int
    end_ns: int
    step: int | None  # the step that launched it
    launch_start_ns: int
    launch_end_ns: int
    is_linked: bool


@dataclass(frozen=True)
class Call:
    """One call of the runtime."""

    name: str
    thread: int
    start_ns: int
    end_ns: int
    step: int | None


Length = Callable[[int], int]
"""How long work on the GPU runs that starts at a moment; both are nanoseconds."""


@dataclass(frozen=True)
class Moment:
    """A recorded event: the work that a stream has been given so far is done at `time_ns`."""

    time_ns: int
    stream: int = -1
    correlation: int = -1


_COLLECTIVES = {
    "all_reduce": ("allreduce", "AllReduce_Sum_bf16_RING_LL"),
    "all_gather": ("_allgather_base", "AllGather_RING_LL"),
    "reduce_scatter": ("_reduce_scatter_base", "ReduceScatter_Sum_bf16_RING_LL"),
    "all_to_all": ("all_to_all", "SendRecv"),
    "broadcast": ("broadcast", "Broadcast_RING_LL"),
}
_DTYPE_BYTES = {"Float": 4, "BFloat16": 2, "Half": 2, "Double": 8, "Long": 8, "Int": 4}


class Op:
    """An operator that is about to run: a context, or the home of a single launch or call.

    `with t.op("aten::mm"): …` puts what is inside into it; `t.op("aten::mm").launch(…)` runs the
    operator with that one launch, and likewise for `copy`, `sync`, `item` and `python`.
    """

    def __init__(self, trace: GpuTrace, event: dict[str, Any], before: int, after: int) -> None:
        self._trace = trace
        self._event = event
        self._before = before
        self._after = after
        self._start = 0

    def __enter__(self) -> Op:
        self._start = self._trace.now
        self._trace._open.append(self._event["args"].get("External id"))
        self._trace.now += self._before
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._trace.now += self._after
        self._trace._open.pop()
        self._trace._add(self._event, self._start, self._trace.now)

    def launch(self, name: str, dur_ns: int, **more: Any) -> GpuTrace:
        with self:
            self._trace.launch(name, dur_ns, **more)
        return self._trace

    def copy(self, direction: str, size: int, dur_ns: int, **more: Any) -> GpuTrace:
        with self:
            self._trace.copy(direction, size, dur_ns, **more)
        return self._trace

    def sync(self, **more: Any) -> GpuTrace:
        with self:
            self._trace.sync(**more)
        return self._trace

    def python(self, dur_ns: int) -> GpuTrace:
        with self:
            self._trace.python(dur_ns)
        return self._trace


@dataclass
class GpuTrace:
    """A training process with one GPU, as its profiler records it.

    Attributes:
        device: Number of the GPU.
        vendor: "nvidia" (CUDA names, stream 7, occupancy) or "amd" (HIP names, no occupancy).
        device_name: What the header says about the GPU; None: no header entry at all.
        memory_bytes: Size of its memory, for the header.
        rank: Rank of the process.
        world_size: Ranks of the job.
        first_step: Number of the first step.
        annotate_steps: Whether the profiler writes `ProfilerStep#N`.
        call_ns: How long a launching or other plain call takes on the host.
        latency_ns: From the end of a launching call to the earliest start on the device.
        sync_records: Whether the recorder writes `cuda_sync` records, as torch does with
            `enable_cuda_sync_events`.
        wake_ns: From the end of what the host waits for to the return of the waiting call.
        queue_depth: How many launches of a stream may wait for their start; None: any number.
        start_ns: Time of the first event.
        header: More top-level keys of the file.
    """

    device: int = 0
    vendor: str = "nvidia"
    device_name: str | None = "NVIDIA H100 80GB HBM3"
    memory_bytes: int = 80 << 30
    rank: int = 0
    world_size: int = 1
    first_step: int = 0
    annotate_steps: bool = True
    call_ns: int = 4_000
    latency_ns: int = 5_000
    wake_ns: int = 2_000
    sync_records: bool = False
    queue_depth: int | None = None
    start_ns: int = 1_000_000_000
    header: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.process = 100 + self.rank
        self.compute_stream = COMPUTE_STREAM if self.vendor == "nvidia" else 0
        self.events: list[dict[str, Any]] = []
        self.work: list[Work] = []
        self.calls: list[Call] = []
        self._clock = {MAIN_THREAD: self.start_ns}
        self._thread = MAIN_THREAD
        self._free: dict[tuple[int, int], int] = {}
        self._started: dict[tuple[int, int], list[int]] = {}
        self._lanes: dict[int, str] = {MAIN_THREAD: "python"}
        self._open: list[int | None] = []
        self._frames: list[int] = []
        self._next_step = self.first_step
        self._step: int | None = None
        self._counter = 0
        self._sequence = 0
        self._allocated = 0
        self._reserved = 0
        self._collectives = 0

    # The clock

    @property
    def now(self) -> int:
        """The current thread's time."""
        return self._clock[self._thread]

    @now.setter
    def now(self, time_ns: int) -> None:
        self._clock[self._thread] = time_ns

    def stream_free_ns(self, stream: int | None = None, device: int | None = None) -> int:
        """When everything given to a stream is done."""
        return self._free.get(self._place(stream, device), 0)

    def device_free_ns(self, device: int | None = None) -> int:
        """When everything given to a GPU is done."""
        mine = self.device if device is None else device
        return max((t for (owner, _), t in self._free.items() if owner == mine), default=0)

    def python(self, dur_ns: int) -> GpuTrace:
        """Let the host work without recording anything: Python outside operators."""
        self.now += dur_ns
        return self

    # Host events

    @contextmanager
    def step(self, dur_ns: int | None = None) -> Iterator[int]:
        """One training step; with `dur_ns` the host idles at its end until that has passed."""
        number, start = self._next_step, self.now
        self._step = number
        yield number
        if dur_ns is not None:
            if self.now > start + dur_ns:
                raise ValueError(f"step {number} takes {self.now - start} ns already")
            self.now = start + dur_ns
        self._next_step += 1
        self._step = None
        if self.annotate_steps:
            self._add(self._host("user_annotation", f"ProfilerStep#{number}"), start, self.now)

    @contextmanager
    def thread(self, thread: int = BACKWARD_THREAD, name: str = "pt_autograd_0") -> Iterator[None]:
        """What is inside runs on another thread while the current one waits for it."""
        caller, start = self._thread, self.now
        self._lanes.setdefault(thread, name)
        self._thread = thread
        self.now = max(self._clock.get(thread, start), start)
        yield
        end = self.now
        self._thread = caller
        self.now = max(self.now, end)

    @contextmanager
    def beside(self, thread: int, name: str = "worker") -> Iterator[None]:
        """What is inside runs on another thread at the same time: the current one does not wait."""
        caller, start = self._thread, self.now
        self._lanes.setdefault(thread, name)
        self._thread = thread
        self.now = max(self._clock.get(thread, start), start)
        yield
        self._thread = caller

    def op(
        self,
        name: str,
        *,
        shapes: Sequence[Any] | None = None,
        types: Sequence[str] | None = None,
        concrete: Sequence[str] | None = None,
        before: int = 2_000,
        after: int = 1_000,
        sequence: int | None = None,
        forward_thread: int | None = None,
        category: str = "cpu_op",
        **more: Any,
    ) -> Op:
        """An operator; use it as a context, or call `launch`, `copy`, … on it.

        Args:
            name: Such as "aten::mm".
            shapes: Input Dims.
            types: Input type, as torch names C++ types: "float", "c10::BFloat16", "c10::Half".
            concrete: Concrete Inputs.
            before: Host time from its start to its first content.
            after: Host time from its last content to its end.
            sequence: Autograd's sequence number; `next_sequence` gives a fresh one.
            forward_thread: For backward operators, the forward thread's own number (1).
            category: The recorder's word for it.
            more: Further arguments, under their own names.
        """
        args: dict[str, Any] = {"External id": self._number()}
        if sequence is not None:
            args["Sequence number"] = sequence
            args["Fwd thread id"] = forward_thread or 0
        if shapes is not None:
            args["Input Dims"] = list(shapes)
            args["Input type"] = list(types or ["float"] * len(shapes))
        if concrete is not None:
            args["Concrete Inputs"] = list(concrete)
        args.update(more)
        return Op(self, self._host(category, name, args), before, after)

    def annotate(self, name: str, before: int = 0, after: int = 0) -> Op:
        """A `record_function` around what is inside, such as a checkpoint or a phase."""
        return self.op(name, before=before, after=after, category="user_annotation")

    def next_sequence(self) -> int:
        """A fresh autograd sequence number."""
        self._sequence += 1
        return self._sequence

    @contextmanager
    def frame(self, name: str) -> Iterator[None]:
        """A Python function around what is inside, as `with_stack` records it.

        Args:
            name: "file.py(12): function", "nn.Module: Linear_0", "<built-in method item …>".
        """
        number = self._number()
        args = {"Python id": number, "Python parent id": self._frames[-1] if self._frames else None}
        if name.startswith("nn.Module: "):
            args["Python module id"] = int(name.rpartition("_")[2] or 0)
        start = self.now
        self._frames.append(number)
        yield
        self._frames.pop()
        self._add(self._host("python_function", name, args), start, self.now)

    def data_wait(self, dur_ns: int, *, workers: bool = False) -> GpuTrace:
        """The DataLoader's next batch, loaded by the thread itself or by workers."""
        kind = "MultiProcessing" if workers else "SingleProcess"
        name = f"enumerate(DataLoader)#_{kind}DataLoaderIter.__next__"
        with self.annotate(name):
            self.now += dur_ns
        return self

    def gc_pause(self, dur_ns: int) -> GpuTrace:
        """The garbage collector stops the thread (recorded since torch 2.9)."""
        start = self.now
        self.now += dur_ns
        self._add(self._host("python_function", "Python GC"), start, self.now)
        return self

    def overhead(self, name: str, dur_ns: int) -> GpuTrace:
        """Time that the profiler takes, such as "Activity Buffer Request"."""
        start = self.now
        self.now += dur_ns
        self._add(self._host("overhead", name), start, self.now)
        return self

    def memory(self, change_bytes: int, *, address: int | None = None) -> GpuTrace:
        """A `[memory]` instant: an allocation, or a free where the change is negative.

        What is reserved grows with what is allocated, in pieces of 2 MiB, and never shrinks here;
        `malloc` and `free` change it too.
        """
        self._allocated += change_bytes
        self._reserved = max(self._reserved, -(-self._allocated // (2 << 20)) * (2 << 20))
        self.events.append(
            {
                "ph": "i",
                "s": "t",
                "cat": "cpu_instant_event",
                "name": "[memory]",
                "pid": self.process,
                "tid": self._thread,
                "ts": self.now,
                "args": {
                    "Total Reserved": self._reserved,
                    "Total Allocated": self._allocated,
                    "Bytes": change_bytes,
                    "Addr": address or 0x7F0000000000 + self._number() * 512,
                    "Device Id": self.device,
                    "Device Type": 1,
                },
            }
        )
        return self

    # Calls of the runtime

    def call(self, name: str, dur_ns: int | None = None, **args: Any) -> GpuTrace:
        """A call of the runtime that starts no GPU work; CUDA names become HIP names on AMD."""
        self._call(name, self.call_ns if dur_ns is None else dur_ns, **args)
        return self

    def launch(
        self,
        name: str,
        dur_ns: int,
        *,
        stream: int | None = None,
        device: int | None = None,
        grid: tuple[int, int, int] = (128, 1, 1),
        block: tuple[int, int, int] = (256, 1, 1),
        occupancy: int | None = 50,
        registers: int = 32,
        call_ns: int | None = None,
        call_name: str = "cudaLaunchKernel",
        linked: bool = True,
        **more: Any,
    ) -> GpuTrace:
        """Launch a kernel.

        Args:
            name: The kernel's.
            dur_ns: How long it runs.
            stream: Where; by default the compute stream.
            device: Where; by default the trace's GPU.
            grid: Blocks.
            block: Threads of a block.
            occupancy: Estimated achieved occupancy in percent; None: not recorded.
            registers: Per thread.
            call_ns: How long the launching call takes.
            call_name: The launching call's CUDA name.
            linked: False leaves the launching call out of the file, as recorders sometimes do.
            more: Further arguments of the kernel, such as `**{"Collective name": "allreduce"}`.
        """
        args: dict[str, Any] = {"grid": list(grid), "block": list(block)}
        if self.vendor == "nvidia":
            args["registers per thread"] = registers
            args["shared memory"] = 0
            blocks = grid[0] * grid[1] * grid[2]
            args["blocks per SM"] = round(blocks / 132, 6)
            args["warps per SM"] = round(blocks * block[0] * block[1] * block[2] / 32 / 132, 6)
            if occupancy is not None:
                args["est. achieved occupancy %"] = occupancy
        args.update(more)
        kind = "communication" if "Collective name" in more else "compute"
        self._launch(
            call_name, "kernel", name, dur_ns, kind, stream, device, call_ns, args, linked=linked
        )
        return self

    def fill(self, size: int, dur_ns: int, *, stream: int | None = None) -> GpuTrace:
        """Fill memory (`cudaMemsetAsync`)."""
        self._launch(
            "cudaMemsetAsync",
            "gpu_memset",
            "Memset (Device)",
            dur_ns,
            "memset",
            stream,
            None,
            None,
            {"bytes": size, "memory bandwidth (GB/s)": round(size / max(1, dur_ns), 3)},
        )
        return self

    def copy(
        self,
        direction: str,
        size: int,
        dur_ns: int,
        *,
        pinned: bool = True,
        blocking: bool | None = None,
        stream: int | None = None,
        linked: bool = True,
    ) -> GpuTrace:
        """Copy memory (`cudaMemcpyAsync`).

        Args:
            direction: "HtoD", "DtoH" or "DtoD".
            size: Bytes.
            dur_ns: How long it runs on the device.
            pinned: Whether host memory is pinned; pageable copies hold the host up.
            blocking: Whether the host waits for the end: by a stream synchronisation after it, on
                AMD within the call (`hipMemcpyWithStream`). By default it does where the host's
                memory is pageable.
            stream: Where; by default the compute stream.
            linked: False leaves the call out of the file.
        """
        host = "Pinned" if pinned else "Pageable"
        if self.vendor == "amd":
            host = "Host"
        ends = [host if end == "H" else "Device" for end in (direction[0], direction[3])]
        name = f"Memcpy {direction} ({ends[0]} -> {ends[1]})"
        waits = ("H" in direction and not pinned) if blocking is None else blocking
        within = waits and linked and self.vendor == "amd"
        self._launch(
            "hipMemcpyWithStream" if within else "cudaMemcpyAsync",
            "gpu_memcpy",
            name,
            dur_ns,
            "memcpy",
            stream,
            None,
            None,
            {"bytes": size, "memory bandwidth (GB/s)": round(size / max(1, dur_ns), 3)},
            linked=linked,
        )
        if within:
            self._return_at(self.work[-1].end_ns + self.wake_ns)
        elif waits:
            self.sync(stream=self.compute_stream if stream is None else stream)
        return self

    def graph_launch(
        self,
        kernels: Sequence[tuple[str, int]],
        *,
        stream: int | None = None,
        gap_ns: int = 0,
        call_ns: int | None = None,
    ) -> GpuTrace:
        """One `cudaGraphLaunch` that runs many kernels, with `gap_ns` between them."""
        call, correlation = self._call(
            "cudaGraphLaunch", self.call_ns if call_ns is None else call_ns
        )
        for node, (name, dur_ns) in enumerate(kernels):
            if node:
                place = self._place(stream, None)
                self._free[place] += gap_ns
            args = {"graph id": 1, "graph node id": node}
            self._run("kernel", name, dur_ns, "compute", stream, None, args, call, correlation)
        return self

    def sync(self, *, stream: int | None = None) -> GpuTrace:
        """Wait for a stream (`cudaStreamSynchronize`), or for the GPU where none is named."""
        if stream is None:
            kind, name, until = "Context", "cudaDeviceSynchronize", self.device_free_ns()
        else:
            kind, name, until = "Stream", "cudaStreamSynchronize", self.stream_free_ns(stream)
        call, correlation = self._call(name, self._waiting(until))
        self._record_sync(f"{kind} Sync", call, correlation, -1 if stream is None else stream)
        return self

    def record_event(self, stream: int | None = None) -> Moment:
        """Mark what a stream has been given so far (`cudaEventRecord`)."""
        _, correlation = self._call("cudaEventRecord", self.call_ns // 2)
        return Moment(self.stream_free_ns(stream), self._place(stream, None)[1], correlation)

    def wait_event(self, moment: Moment, stream: int | None = None) -> GpuTrace:
        """Make a stream wait for a mark (`cudaStreamWaitEvent`); the host does not wait."""
        call, correlation = self._call("cudaStreamWaitEvent", self.call_ns // 2)
        place = self._place(stream, None)
        self._free[place] = max(self._free.get(place, 0), moment.time_ns)
        self._record_sync("Stream Wait Event", call, correlation, place[1], moment)
        return self

    def sync_event(self, moment: Moment) -> GpuTrace:
        """The host waits for a mark (`cudaEventSynchronize`)."""
        call, correlation = self._call("cudaEventSynchronize", self._waiting(moment.time_ns))
        self._record_sync("Event Sync", call, correlation, -1, moment)
        return self

    def _record_sync(
        self, kind: str, call: Call, correlation: int, stream: int, moment: Moment | None = None
    ) -> None:
        if not self.sync_records:
            return
        args: dict[str, Any] = {"cuda_sync_kind": kind}
        if moment is not None:
            args["wait_on_stream"] = moment.stream
            args["wait_on_cuda_event_record_corr_id"] = moment.correlation
            args["wait_on_cuda_event_id"] = 1
        args |= {"stream": stream, "correlation": correlation, "device": self.device, "context": 1}
        # The recorder moves host synchronisation out of the way of the stream's own work.
        lane = stream + 1_000_000 if kind == "Stream Sync" else stream
        event = {"ph": "X", "cat": "cuda_sync", "name": kind, "pid": self.device, "tid": lane}
        self._add({**event, "args": args}, call.start_ns, call.end_ns)

    def malloc(self, size: int, dur_ns: int = 150_000) -> GpuTrace:
        """Get memory from the driver (`cudaMalloc`)."""
        self._reserved += size
        self._call("cudaMalloc", dur_ns)
        return self

    def free(self, size: int, dur_ns: int = 100_000) -> GpuTrace:
        """Give memory back (`cudaFree`), which waits until the GPU is idle."""
        self._reserved = max(0, self._reserved - size)
        self._call("cudaFree", max(dur_ns, self._waiting(self.device_free_ns())))
        return self

    # What frameworks do

    def item(self, dur_ns: int = 1_500) -> GpuTrace:
        """`tensor.item()`: copy one value to the host and wait for it."""
        with self.op("aten::item"), self.op("aten::_local_scalar_dense"):
            self.copy("DtoH", 4, dur_ns, pinned=False)
        return self

    def collective(
        self,
        kind: str,
        size: int,
        dur_ns: int | Length,
        *,
        group_size: int | None = None,
        group_name: str = "0",
        group_ranks: Sequence[int] | None = None,
        dtype: str = "BFloat16",
        stream: int = COMM_STREAM,
        waits_for_compute: bool = True,
        metadata: bool = True,
        linked: bool = True,
    ) -> Moment:
        """A collective of NCCL or RCCL on its own stream; returns the mark of its end.

        Args:
            kind: "all_reduce", "all_gather", "reduce_scatter", "all_to_all" or "broadcast".
            size: Bytes that this rank puts in.
            dur_ns: How long its kernel runs; a function is given its start.
            group_size: Ranks; by default the whole job.
            group_name: Name of the process group.
            group_ranks: Its ranks; by default the first `group_size`.
            dtype: Torch's name of the type.
            stream: Its stream.
            waits_for_compute: Whether it starts only after the compute work given so far.
            metadata: Whether the recorder wrote the collective's arguments.
            linked: False leaves the launching call out of the file.
        """
        word, tail = _COLLECTIVES[kind]
        ranks = len(group_ranks) if group_ranks else group_size or self.world_size
        elements = size // _DTYPE_BYTES[dtype]
        factor = ranks if kind == "all_gather" else 1
        out = elements // ranks if kind == "reduce_scatter" else elements * factor
        about: dict[str, Any] = {
            "Collective name": word,
            "In msg nelems": elements,
            "Out msg nelems": out,
            "Group size": ranks,
            "dtype": dtype,
            "In split size": "[]",
            "Out split size": "[]",
            "Process Group Name": group_name,
            "Process Group Description": "default_pg",
            "Process Group Ranks": json.dumps(list(group_ranks or range(ranks))),
        }
        self._collectives += 1
        with (
            self.op(f"c10d::{kind.replace('_', '')}_"),
            self.op("record_param_comms", **(about if metadata else {})),
            self.annotate(f"nccl:{kind}"),
        ):
            if waits_for_compute:
                self.wait_event(self.record_event(), stream)
            name = f"ncclDevKernel_{tail}(ncclDevKernelArgsStorage<4096ul>)"
            self._launch(
                "cudaLaunchKernelExC",
                "kernel",
                name,
                dur_ns,
                "communication",
                stream,
                None,
                None,
                {"grid": [24, 1, 1], "block": [544, 1, 1], **(about if metadata else {})},
                linked=linked,
            )
        if self.sync_records:
            return self.record_event(stream)
        return Moment(self.stream_free_ns(stream), stream)

    def wait_collective(self, moment: Moment) -> GpuTrace:
        """`work.wait()`: the compute stream waits for a collective; the host does not."""
        return self.wait_event(moment, self.compute_stream)

    # What comes out

    def document(self) -> dict[str, Any]:
        """The file as a dictionary, events in order of time; times are microseconds."""
        header: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": []}
        if self.device_name is not None:
            header["deviceProperties"] = [
                {
                    "id": self.device,
                    "name": self.device_name,
                    "totalGlobalMem": self.memory_bytes,
                    "computeMajor": 9,
                    "computeMinor": 0,
                    "numSms": 132,
                }
            ]
        if self.world_size > 1:
            header["distributedInfo"] = {
                "backend": "nccl",
                "rank": self.rank,
                "world_size": self.world_size,
            }
        header.update(self.header)
        names = [
            {"ph": "M", "name": "process_name", "pid": self.process, "tid": 0, "ts": 0}
            | {"args": {"name": "python"}}
        ]
        names += [
            {"ph": "M", "name": "thread_name", "pid": self.process, "tid": thread, "ts": 0}
            | {"args": {"name": name}}
            for thread, name in self._lanes.items()
        ]
        ordered = sorted(self.events, key=lambda event: (event["ts"], -event.get("dur", 0)))
        written = [
            {key: value / 1000 if key in ("ts", "dur") else value for key, value in event.items()}
            for event in ordered
        ]
        return {**header, "traceEvents": names + written, "displayTimeUnit": "ms"}

    def json(self) -> bytes:
        """The file."""
        return json.dumps(self.document()).encode()

    def load(self) -> Trace:
        """The file, read by Stepscope."""
        import io

        import stepscope

        return stepscope.load(io.BytesIO(self.json()))

    # Inside

    def _waiting(self, until_ns: int) -> int:
        """How long a call takes that waits for a moment."""
        left = until_ns - self.now
        return max(self.call_ns, left + self.wake_ns if left > 0 else 0)

    def _return_at(self, time_ns: int) -> None:
        """Let the last call, which has started GPU work, return no earlier than this."""
        last = self.calls[-1]
        self.calls[-1] = replace(last, end_ns=max(time_ns, last.end_ns))
        event = next(e for e in reversed(self.events) if e["name"] == last.name)
        event["dur"] = self.calls[-1].end_ns - last.start_ns
        self.now = self.calls[-1].end_ns

    def _number(self) -> int:
        self._counter += 1
        return self._counter

    def _place(self, stream: int | None, device: int | None) -> tuple[int, int]:
        return (
            self.device if device is None else device,
            self.compute_stream if stream is None else stream,
        )

    def _host(self, category: str, name: str, args: dict[str, Any] | None = None) -> dict[str, Any]:
        return {
            "ph": "X",
            "cat": category,
            "name": name,
            "pid": self.process,
            "tid": self._thread,
            "args": args or {},
        }

    def _add(self, event: dict[str, Any], start_ns: int, end_ns: int) -> None:
        self.events.append({**event, "ts": start_ns, "dur": end_ns - start_ns})

    def _call_name(self, name: str) -> str:
        return "hip" + name[4:] if self.vendor == "amd" and name.startswith("cuda") else name

    def _call(
        self, name: str, dur_ns: int, *, recorded: bool = True, **args: Any
    ) -> tuple[Call, int]:
        name, correlation, start = self._call_name(name), self._number(), self.now
        self.now += dur_ns
        call = Call(name, self._thread, start, self.now, self._step)
        if recorded:
            category = "cuda_driver" if name.startswith("cu") and name[2].isupper() else None
            around = {"External id": self._open[-1]} if self._open and self._open[-1] else {}
            event = self._host(
                category or "cuda_runtime", name, {**around, "correlation": correlation, **args}
            )
            self._add(event, start, self.now)
            self.calls.append(call)
        return call, correlation

    def _launch(
        self,
        call_name: str,
        category: str,
        name: str,
        dur_ns: int | Length,
        kind: str,
        stream: int | None,
        device: int | None,
        call_ns: int | None,
        args: dict[str, Any],
        *,
        linked: bool = True,
    ) -> None:
        taken = self.call_ns if call_ns is None else call_ns
        started = self._started.setdefault(self._place(stream, device), [])
        if self.queue_depth is not None and len(started) >= self.queue_depth:
            taken += max(0, started[-self.queue_depth] - self.now)
        call, correlation = self._call(call_name, taken, recorded=linked)
        self._run(
            category, name, dur_ns, kind, stream, device, args, call, correlation, linked=linked
        )

    def _run(
        self,
        category: str,
        name: str,
        dur_ns: int | Length,
        kind: str,
        stream: int | None,
        device: int | None,
        args: dict[str, Any],
        call: Call,
        correlation: int,
        *,
        linked: bool = True,
    ) -> None:
        place = self._place(stream, device)
        start = max(call.end_ns + self.latency_ns, self._free.get(place, 0))
        length = dur_ns(start) if callable(dur_ns) else dur_ns
        end = start + length
        self._free[place] = end
        self._started.setdefault(place, []).append(start)
        around = {"External id": self._open[-1]} if linked and self._open and self._open[-1] else {}
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": place[0],
                "tid": place[1],
                "ts": start,
                "dur": length,
                "args": {
                    **around,
                    "device": place[0],
                    "stream": place[1],
                    "correlation": correlation,
                    **args,
                },
            }
        )
        self.work.append(
            Work(
                name,
                kind,
                *place,
                start,
                end,
                call.step,
                call.start_ns,
                call.end_ns,
                linked,
            )
        )
