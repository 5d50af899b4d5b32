"""Writes what a simulated rank did: torch's Chrome trace, or a run with a step record."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.simulator.machine import AUTOGRAD, MAIN, Timeline
from tests.support.simulator.program import COMPUTE, of_rank

_ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::{}, std::array<char*, 3ul> >"
)
KINDS: dict[str, tuple[str, str, str]] = {
    "gemm": ("aten::mm", "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn",
             "c10::BFloat16"),
    "fp32": ("aten::mm", "ampere_sgemm_128x64_tn", "float"),
    "small": ("aten::add", _ELEMENTWISE.format("CUDAFunctor_add<float>"), "float"),
    "elementwise": ("aten::mul", _ELEMENTWISE.format("BinaryFunctor<float, float, float>"),
                    "float"),
    "optimizer": (
        "aten::_fused_adamw_",
        "void at::native::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4> >",
        "float",
    ),
}  # fmt: skip
"""By kind: operator, kernel, type of the operands."""

_quoted = functools.cache(json.dumps)
"""Names as JSON: there are few of them, on very many events."""
_STEP_FRAME = "train.py(10): train_step"
_PEAK_FLOPS_PER_NS = 312e3 * 0.6
"""Of BF16 on an A100, at the 60 % that large products attain; FP32 is given a sixteenth."""
_BYTES_PER_NS = 2039 * 0.85
"""Of an A100's memory, at the 85 % that elementwise kernels attain."""
_ROW = 1024
_ITEM_BYTES = 4


def _events(timeline: Timeline, *, with_steps: bool, stacks: bool, shapes: bool) -> Iterator[str]:
    """Each event as JSON text."""
    begin, process = timeline.started_ns, 100 + timeline.rank
    start_kind = timeline.program.recording.start
    device = timeline.rank % 8
    number = 0
    head = f'"pid":{process},"tid":'

    def host(cat: str, name: str, tid: int, start: int, end: int, args: str = "") -> str:
        return (
            f'{{"ph":"X","cat":"{cat}","name":{_quoted(name)},{head}{tid},'
            f'"ts":{start / 1e3:.3f},"dur":{(end - start) / 1e3:.3f},"args":{{{args}}}}}'
        )

    def call(name: str, tid: int, start: int, end: int, correlation: int) -> str:
        return host("cuda_runtime", name, tid, start, end, f'"correlation":{correlation}')

    def work(
        cat: str, name: str, stream: int, start: int, end: int, correlation: int, more: str = ""
    ) -> str:
        return (
            f'{{"ph":"X","cat":"{cat}","name":{_quoted(name)},"pid":{device},"tid":{stream},'
            f'"ts":{start / 1e3:.3f},"dur":{(end - start) / 1e3:.3f},"args":{{"device":{device},'
            f'"stream":{stream},"correlation":{correlation},"External id":{correlation}{more}}}}}'
        )

    def flow(correlation: int, tid: int, call_ns: int, stream: int, start: int) -> tuple[str, str]:
        shared = f'"cat":"ac2g","name":"ac2g","id":{correlation}'
        return (
            f'{{"ph":"s",{shared},{head}{tid},"ts":{call_ns / 1e3:.3f}}}',
            f'{{"ph":"f","bp":"e",{shared},"pid":{device},"tid":{stream},"ts":{start / 1e3:.3f}}}',
        )

    def is_seen(start: int, called: int) -> bool:
        """Whether work is in the file: it may have been launched before the recording."""
        return called >= begin or (start >= begin and start_kind == "running")

    for tid, name in ((MAIN, "python"), (AUTOGRAD, "pt_autograd_0")):
        yield (f'{{"ph":"M","name":"thread_name",{head}{tid},"ts":0,"args":{{"name":"{name}"}}}}')
    grid = ',"grid":[108,1,1],"block":[256,1,1]'
    for entry in timeline.log:
        kind: str = entry[0]
        tid: int = entry[1]
        number += 1
        if kind == "kernel":
            _, _, what, op_start, called, called_end, op_end, stream, start, end = entry
            if not is_seen(start, called):
                continue
            operator, kernel, operand = KINDS[what]
            yield work("kernel", kernel, stream, start, end, number, grid)
            if called < begin:
                continue
            args = f'"External id":{number}'
            if shapes and what in ("gemm", "fp32"):
                per_ns = _PEAK_FLOPS_PER_NS / (1 if what == "gemm" else 16)
                flops = (end - start) * per_ns
                # Short products are small ones: none exceeds the device's peak.
                side = next((s for s in (4096, 1024) if flops >= 2 * s * s * 256), 256)
                inner = max(16, round(flops / (2 * side * side) / 16) * 16)
                args += (
                    f',"Input Dims":[[{side},{inner}],[{inner},{side}]],'
                    f'"Input type":["{operand}","{operand}"]'
                )
            elif shapes and what in ("small", "elementwise"):
                # It reads two operands and writes a result, as fast as the memory allows. Small
                # kernels take most of their time to start.
                per_row = 3 * _ROW * _ITEM_BYTES
                rows = 1 if what == "small" else round((end - start) * _BYTES_PER_NS / per_row)
                size = f"[{max(1, rows)},{_ROW}]"
                args += f',"Input Dims":[{size},{size}],"Input type":["{operand}","{operand}"]'
            elif shapes:
                args += f',"Input Dims":[[4096,{_ROW}]],"Input type":["{operand}"]'
            yield host("cpu_op", operator, tid, op_start, op_end, args)
            yield call("cudaLaunchKernel", tid, called, called_end, number)
            yield from flow(number, tid, called, stream, start)
        elif kind in ("read", "copy"):
            _, _, op, op_start, called, called_end, sync, op_end, stream, start, end, event_ns = (
                entry
            )
            if not is_seen(start, called):
                continue
            if kind == "read":
                name, size = "Memcpy DtoH (Device -> Pageable)", 4
                operators = ("aten::item", "aten::_local_scalar_dense")
            else:
                memory = "Pinned" if op.is_pinned else "Pageable"
                name, size = f"Memcpy HtoD ({memory} -> Device)", op.size
                operators = ("aten::to", "aten::_to_copy", "aten::copy_")
            speed = size / max(1, end - start)
            more = f',"bytes":{size},"memory bandwidth (GB/s)":{speed:.3f}'
            yield work("gpu_memcpy", name, stream, start, end, number, more)
            if called < begin:
                continue
            # Operators nest, each a little inside the one before.
            inner_end = sync[1] if sync else called_end
            for depth, operator in enumerate(operators):
                ends = op_end if depth == 0 else inner_end
                args = f'"External id":{number}'
                yield host("cpu_op", operator, tid, op_start + 500 * depth, ends, args)
            yield call("cudaMemcpyAsync", tid, called, called_end, number)
            yield from flow(number, tid, called, stream, start)
            if sync:
                yield call("cudaStreamSynchronize", tid, *sync, 10_000_000 + number)
            if stream != COMPUTE:
                at = inner_end
                yield call("cudaEventRecord", tid, at, at + event_ns, 20_000_000 + number)
                yield call(
                    "cudaStreamWaitEvent",
                    tid,
                    at + event_ns,
                    at + 2 * event_ns,
                    30_000_000 + number,
                )
        elif kind == "collective":
            _, _, op, op_start, events, called, called_end, op_end, start, end = entry
            if not is_seen(start, called):
                continue
            ranks = timeline.program.world_size
            about = (
                f'"Collective name":"allreduce","In msg nelems":{op.size // 2},'
                f'"Out msg nelems":{op.size // 2},"Group size":{ranks},"dtype":"BFloat16",'
                '"In split size":"[]","Out split size":"[]","Process Group Name":"0",'
                '"Process Group Description":"default_pg",'
                f'"Process Group Ranks":"{list(range(ranks))}"'
            )
            kernel = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
            yield work("kernel", kernel, 20, start, end, number, f"{grid},{about}")
            if called < begin:
                continue
            yield host("cpu_op", "c10d::allreduce_", tid, op_start, op_end,
                       f'"External id":{number}')  # fmt: skip
            yield host("cpu_op", "record_param_comms", tid, op_start + 1000, op_end - 1000,
                       f'"External id":{number},{about}')  # fmt: skip
            yield host("user_annotation", "nccl:all_reduce", tid, op_start + 2000, op_end - 2000)
            if events[1] > events[0]:
                yield call("cudaEventRecord", tid, events[0], events[1], 20_000_000 + number)
                yield call("cudaStreamWaitEvent", tid, events[1], events[2], 30_000_000 + number)
            yield call("cudaLaunchKernelExC", tid, called, called_end, number)
            yield from flow(number, tid, called, 20, start)
        elif kind == "graph":
            _, _, op, called, called_end, start = entry
            at = start
            for node in range(op.count):
                if is_seen(at, called):
                    more = f'{grid},"graph id":1,"graph node id":{node}'
                    end = at + op.dur_ns
                    yield work("kernel", KINDS[op.kind][1], COMPUTE, at, end, number, more)
                at += op.dur_ns + op.gap_ns
            if called >= begin:
                yield call("cudaGraphLaunch", tid, called, called_end, number)
                yield from flow(number, tid, called, COMPUTE, start)
        else:
            yield from _of_host(timeline, entry, number, host, call, with_steps, stacks)


def _of_host(
    timeline: Timeline,
    entry: tuple[Any, ...],
    number: int,
    host: Any,
    call: Any,
    with_steps: bool,
    stacks: bool,
) -> Iterator[str]:
    """Entries that have no GPU work."""
    begin, kind, tid = timeline.started_ns, entry[0], entry[1]
    if kind == "join":
        _, _, start, middle, end = entry
        if start >= begin:
            yield call("cudaEventRecord", tid, start, middle, 20_000_000 + number)
            yield call("cudaStreamWaitEvent", tid, middle, end, 30_000_000 + number)
        return
    if kind == "sync":
        _, _, name, start, end, _ = entry
        if start >= begin:
            yield call(name, tid, start, end, number)
        return
    if kind in ("call", "once"):
        _, _, name, start, end = entry
        if start >= begin:
            yield call(name, tid, start, end, number)
        return
    if kind == "batch":
        _, _, has_workers, start, end = entry
        process = "MultiProcessing" if has_workers else "SingleProcess"
        name = f"enumerate(DataLoader)#_{process}DataLoaderIter.__next__"
        if start >= begin:
            yield host("user_annotation", name, tid, start, end)
        return
    if kind == "gc":
        _, _, start, end = entry
        if start >= begin:
            yield host("python_function", "Python GC", tid, start, end)
        return
    if kind == "step":
        _, _, step, start, end = entry
        if start >= begin and with_steps:
            yield host("user_annotation", f"ProfilerStep#{step}", tid, start, end)
        if start >= begin and stacks:
            yield _frame(host, _STEP_FRAME, tid, start, end, 10 * number)
        return
    if kind == "range":
        _, _, name, start, end = entry
        if start >= begin:
            yield host("user_annotation", name, tid, start, end)
        return
    if kind == "backward":
        _, _, start, end = entry
        if start >= begin and stacks:
            name = "<built-in method run_backward of torch._C._EngineBase object at 0x7f0000000000>"
            yield _frame(host, name, tid, start, end, 10 * number)
        return
    assert kind == "frame"
    _, _, name, start, end = entry
    if start >= begin and stacks:
        yield _frame(host, name, tid, start, end, 10 * number)


def _frame(host: Any, name: str, tid: int, start: int, end: int, number: int) -> str:
    text: str = host(
        "python_function", name, tid, start, end, f'"Python id":{number},"Python parent id":null'
    )
    return text


def trace_text(
    timeline: Timeline,
    *,
    rank: int | None = None,
    with_steps: bool | None = None,
    stacks: bool | None = None,
    shapes: bool | None = None,
) -> str:
    """The trace file of the recorded steps.

    Args:
        timeline: What a rank did.
        rank: The rank that the file says it is; by default the timeline's own.
        with_steps: Whether the profiler annotates steps; by default as the program has it.
        stacks: Whether Python frames are recorded; likewise.
        shapes: Whether shapes are recorded; likewise.
    """
    program, recording = timeline.program, timeline.program.recording
    with_steps = recording.has_steps if with_steps is None else with_steps
    stacks = recording.has_stacks if stacks is None else stacks
    shapes = recording.has_shapes if shapes is None else shapes
    if rank is not None and rank != timeline.rank:
        timeline = Timeline(program, rank, timeline.steps, timeline.log, timeline.started_ns,
                            timeline.stopped_ns)  # fmt: skip
    header: dict[str, Any] = {
        "schemaVersion": 1,
        "deviceProperties": [
            {
                "id": timeline.rank % 8,
                "name": program.machine.device,
                "totalGlobalMem": 80 << 30,
                "computeMajor": 8,
                "computeMinor": 0,
                "numSms": 108,
            }
        ],
        "displayTimeUnit": "ms",
    }
    if program.world_size > 1:
        header["distributedInfo"] = {
            "backend": "nccl",
            "rank": timeline.rank,
            "world_size": program.world_size,
        }
    span = (
        '{"ph":"X","cat":"Trace","name":"PyTorch Profiler (0)","pid":"Spans",'
        f'"tid":"PyTorch Profiler","ts":{timeline.started_ns / 1e3:.3f},'
        f'"dur":{(timeline.stopped_ns - timeline.started_ns) / 1e3:.3f},"args":{{}}}}'
    )
    events = [span, *_events(timeline, with_steps=with_steps, stacks=stacks, shapes=shapes)]
    return json.dumps(header)[:-1] + ',"traceEvents":[\n' + ",\n".join(events) + "\n]}"


def write_trace(timeline: Timeline, path: Path, **options: Any) -> Path:
    """Write the trace of one rank; options are those of `trace_text`."""
    path.write_text(trace_text(timeline, **options))
    return path


def _timeline_of(timeline: Timeline, rank: int) -> Timeline:
    """What a rank did: the late one its own, all others the same."""
    for one in timeline.others:
        if one.rank == rank:
            return one
    return timeline


def write_job(timeline: Timeline, folder: Path, **options: Any) -> Path:
    """Write a folder with the trace of each rank."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(timeline.program.world_size):
        text = trace_text(_timeline_of(timeline, rank), rank=rank, **options)
        (folder / f"rank{rank}.pt.trace.json").write_text(text)
    return folder


EPOCH_NS = 1_700_000_000_000_000_000


def write_run(timeline: Timeline, folder: Path, **options: Any) -> Path:
    """Write a run directory: description, and per rank a step record and the window's trace."""
    program, recording = timeline.program, timeline.program.recording
    folder.mkdir(parents=True, exist_ok=True)
    ranks = program.world_size
    job = {
        "name": folder.name,
        "created_ns": EPOCH_NS,
        "cpu_count": program.loader.cpus if program.loader else 8,
        "devices": [program.machine.device],
        "world_size": ranks,
        "format": "stepscope-run",
        "version": 1,
    }
    (folder / "run.json").write_text(json.dumps(job))
    last = recording.first + recording.steps - 1
    for rank in range(ranks):
        mine = _timeline_of(timeline, rank)
        root = folder / f"rank{rank:05d}"
        window = root / "window-0000"
        window.mkdir(parents=True)
        (window / "trace.json").write_text(trace_text(mine, rank=rank, **options))
        one = of_rank(program, rank).loader
        cpu_share = one.cpu_ns / max(1, one.cpu_ns + one.waiting_ns) if one else 0.0
        lines = []
        for number, step in enumerate(mine.steps):
            following = mine.steps[number + 1 :]
            end = following[0].start_ns if following else step.end_ns
            is_recorded = recording.first <= step.number <= last
            line: dict[str, Any] = {
                "step": step.number,
                "start_ns": EPOCH_NS + step.start_ns,
                "dur_ns": end - step.start_ns,
                "data_wait_ns": step.wait_ns,
            }
            if one is not None and not one.workers:
                line["data_wait_cpu_ns"] = round(step.wait_ns * cpu_share)
            times = {
                "loader_workers_ns": step.worker_start_ns,
                "epoch_start_ns": step.epoch_start_ns,
                "sampler_ns": step.sampler_ns,
            }
            line |= {name: took_ns for name, took_ns in times.items() if took_ns}
            if step.gc_ns:
                line["gc_ns"] = step.gc_ns
            if number:
                line["device_ns"] = step.mark_ns - mine.steps[number - 1].mark_ns
            if is_recorded:
                line["window"] = 0
            lines.append(json.dumps(line))
        (root / "steps.jsonl").write_text("\n".join(lines) + "\n")
        manifest: dict[str, Any] = {
            "rank": rank,
            "world_size": ranks,
            "state": "finished",
            "ended": f"finished after {len(lines)} steps",
            "steps": len(lines),
            "windows": [
                {
                    "index": 0,
                    "state": "complete",
                    "first_step": recording.first,
                    "last_step": last,
                    "artifacts": [{"kind": "trace", "path": "window-0000/trace.json"}],
                }
            ],
            "format": "stepscope-rank",
            "version": 1,
        }
        if one is not None:
            busy = one.cpu_ns + one.send_ns
            manifest["loader"] = {
                "workers": one.workers,
                "prefetch_factor": one.prefetch,
                "cpus": one.cpus,
                "worker_cpu_share": round(busy / max(1, busy + one.waiting_ns), 3)
                if one.workers
                else None,
                "is_persistent": one.is_persistent if one.workers else None,
                "starts": 1,
                "is_iterable": False,
            }
        (root / "manifest.json").write_text(json.dumps(manifest))
    return folder
