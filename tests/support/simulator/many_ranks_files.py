"""Writes what the ranks of a simulated job did: step records, and torch's trace of a window."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.simulator.many_ranks import KERNELS, PER_MACHINE, JobTimes

EPOCH_NS = 1_700_000_000_000_000_000
_MAIN, _GLOO, _COMPUTE, _COMM = 1000, 1077, 7, 20
_GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"
_ADAM = "void at::native::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4> >"
_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
_CLOCK_ERROR_NS = 200_000


def write_job_run(times: JobTimes, folder: Path) -> Path:
    """Write a run directory, or a folder of traces where there are no step records."""
    job = times.job
    folder.mkdir(parents=True, exist_ok=True)
    if not job.has_record:
        for rank in range(job.ranks):
            (folder / f"rank{rank}.pt.trace.json").write_text(_trace(times, rank))
        return folder
    about = {
        "name": folder.name, "created_ns": EPOCH_NS, "cpu_count": 64, "world_size": job.ranks,
        "devices": ["NVIDIA A100-SXM4-80GB"] if job.on_gpu else [],
        "format": "stepscope-run", "version": 1,
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(about))
    for rank in range(job.ranks):
        root = folder / f"rank{rank:05d}"
        (root / "window-0000").mkdir(parents=True)
        (root / "window-0000" / "trace.json").write_text(_trace(times, rank))
        (root / "steps.jsonl").write_text("\n".join(step_lines(times, rank)) + "\n")
        (root / "manifest.json").write_text(json.dumps(_manifest(times, rank)))
    return folder


def _own(times: JobTimes, rank: int, at_ns: Any) -> Any:
    """Moments as the rank's clock reads them."""
    return at_ns * (1 + times.drift[rank]) + times.clock_ns[rank] + 1e9


def _manifest(times: JobTimes, rank: int) -> dict[str, Any]:
    job = times.job
    last = job.first + job.active - 1
    error_ns = (rank * 7919 % 200 - 100) * 1000
    manifest = {
        "rank": rank, "world_size": job.ranks, "local_rank": rank % PER_MACHINE,
        "host": f"node{rank // PER_MACHINE}", "state": "finished",
        "ended": f"finished after {job.steps} steps", "steps": job.steps,
        "windows": [{
            "index": 0, "state": "complete", "first_step": job.first, "last_step": last,
            "artifacts": [{"kind": "trace", "path": "window-0000/trace.json"}],
        }],
        "format": "stepscope-rank", "version": 1,
    }  # fmt: skip
    if rank // PER_MACHINE:
        manifest["clock_offset_ns"] = round(times.clock_ns[0] - times.clock_ns[rank]) + error_ns
        manifest["clock_error_ns"] = _CLOCK_ERROR_NS
    return manifest


def step_lines(times: JobTimes, rank: int) -> Iterator[str]:
    """The step record of a rank, line by line."""
    job = times.job
    start = _own(times, rank, times.start[:, rank])
    mark = np.zeros(job.steps)
    last = KERNELS + job.pieces
    for step in range(job.steps):
        end = start[step + 1] if step + 1 < job.steps else _own(times, rank, times.end[step, rank])
        begun = times.pause_end[step, rank]
        line: dict[str, Any] = {
            "step": step,
            "start_ns": EPOCH_NS + round(start[step]),
            "dur_ns": round(end - start[step]),
            "data_wait_ns": round(times.batch_end[step, rank] - times.start[step, rank]),
            "phases": {
                "forward": round(times.forward_end[step, rank] - begun),
                "backward": round(times.backward_end[step, rank] - times.forward_end[step, rank]),
                "optimizer": round(times.end[step, rank] - times.backward_end[step, rank]),
            },
        }
        if not job.on_gpu:
            line["cpu_ns"] = round(float(times.cpu_ns[step, rank]))
            line["queued_ns"] = round(float(times.queued_ns[step, rank]))
        if times.job.plant.kind == "collector":
            line["gc_ns"] = round(begun - times.batch_end[step, rank])
        if job.on_gpu:
            ends = times.work_end[step, :, rank]
            met = max(ends[last - 1], times.met_end[step, -1, rank])
            forward = ends[KERNELS - 1]
            if job.group:
                forward = max(forward, times.group_end[step, 0, rank])
            line["device_phases"] = {
                "forward": round(forward - begun),
                "backward": round(met - forward),
                "optimizer": round(ends[last] - met),
            }
            mark[step] = times.end[step, rank]
            if step:
                line["device_ns"] = round(mark[step] - mark[step - 1])
        if job.first <= step < job.first + job.active:
            line["window"] = 0
        yield json.dumps(line)


def _trace(times: JobTimes, rank: int) -> str:
    job = times.job
    listed: list[dict[str, Any]] = [
        {
            "pg_name": "0",
            "pg_desc": "default_pg",
            "pg_size": job.ranks,
            "ranks": [*range(job.ranks)],
        }
    ]
    if job.group:
        first = rank // job.group * job.group
        listed.append({
            "pg_name": str(1 + rank // job.group), "pg_desc": "tensor", "pg_size": job.group,
            "ranks": [*range(first, first + job.group)],
        })  # fmt: skip
    header: dict[str, Any] = {
        "schemaVersion": 1, "displayTimeUnit": "ms", "host_name": f"node{rank // PER_MACHINE}",
        "baseTimeNanoseconds": EPOCH_NS,
        "deviceProperties": [{
            "id": rank % PER_MACHINE, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 80 << 30,
            "computeMajor": 8, "computeMinor": 0, "numSms": 108,
        }] if job.on_gpu else [],
        "distributedInfo": {
            "backend": "nccl" if job.on_gpu else "gloo", "rank": rank, "world_size": job.ranks,
            "pg_count": len(listed), "pg_config": listed,
        },
    }  # fmt: skip
    body = ",\n".join(_events(times, rank))
    return json.dumps(header)[:-1] + ',"traceEvents":[\n' + body + "\n]}"


class _Writer:
    """Events as JSON text."""

    def __init__(self, times: JobTimes, rank: int) -> None:
        self.times, self.rank, self.number = times, rank, 0
        self.lines: list[str] = []

    def span(self, cat: str, name: str, start: float, end: float, args: str = "",
             tid: int = _MAIN, pid: int | None = None) -> None:  # fmt: skip
        begin, until = _own(self.times, self.rank, np.array([start, end]))
        pid = 100 + self.rank if pid is None else pid
        self.lines.append(
            f'{{"ph":"X","cat":"{cat}","name":"{name}","pid":{pid},"tid":{tid},'
            f'"ts":{begin / 1e3:.3f},"dur":{(until - begin) / 1e3:.3f},"args":{{{args}}}}}'
        )

    def launch(self, operator: str, kernel: str, called: float, start: float, end: float,
               stream: int, about: str = "") -> None:  # fmt: skip
        """An operator, its launching call, and its kernel."""
        self.number += 1
        number, device = self.number, self.rank % PER_MACHINE
        self.span("cpu_op", operator, called - 12_000, called,
                  f'"External id":{number}' + (about if "param" in operator else ""))  # fmt: skip
        self.span("cuda_runtime", "cudaLaunchKernel", called - 8_000, called - 2_000,
                  f'"correlation":{number},"External id":{number}')  # fmt: skip
        self.span("kernel", kernel, start, end,
                  f'"device":{device},"stream":{stream},"correlation":{number},"External id":'
                  f'{number},"grid":[108,1,1],"block":[256,1,1]{about}',
                  stream, device)  # fmt: skip


def _events(times: JobTimes, rank: int) -> list[str]:
    job, write = times.job, _Writer(times, rank)
    steps = range(job.first, job.first + job.active)
    write.lines.append(
        f'{{"ph":"M","name":"thread_name","pid":{100 + rank},"tid":{_MAIN},"ts":0,'
        '"args":{"name":"python"}}'
    )
    name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    for s in steps:
        start, end = times.start[s, rank], times.end[s, rank]
        batch, pause = times.batch_end[s, rank], times.pause_end[s, rank]
        forward, backward = times.forward_end[s, rank], times.backward_end[s, rank]
        write.span("user_annotation", f"ProfilerStep#{s}", start, end)
        write.span("user_annotation", name, start, batch)
        if job.plant.kind == "collector" and pause > batch:
            write.span("python_function", "Python GC", batch, pause)
        for label, since, until in (
            ("forward", pause, forward),
            ("backward", forward, backward),
            ("Optimizer.step#AdamW.step", backward, end),
        ):
            write.span("user_annotation", label, since, until)
        _work(write, s)
        _meetings(write, s)
        if job.on_gpu:
            last = KERNELS + job.pieces
            launched, done = times.launched[s, last, rank], times.work_end[s, last, rank]
            read_loss(write, launched, done, end)
    return write.lines


def _work(write: _Writer, s: int) -> None:
    times, rank = write.times, write.rank
    last = KERNELS + times.job.pieces
    for place in range(last + 1):
        start, end = times.work_start[s, place, rank], times.work_end[s, place, rank]
        operator = "aten::addmm" if place < KERNELS else "AddmmBackward0"
        if place == last:
            operator = "aten::_fused_adamw_"
        if times.job.on_gpu:
            kernel = _ADAM if place == last else _GEMM
            write.launch(operator, kernel, times.launched[s, place, rank], start, end, _COMPUTE)
        else:
            write.number += 1
            write.span("cpu_op", operator, start, end, f'"External id":{write.number}')


def _about(ranks: range, name: str, description: str) -> str:
    return (
        ',"Collective name":"allreduce","In msg nelems":1048576,"Out msg nelems":1048576,'
        f'"Group size":{len(ranks)},"dtype":"BFloat16","In split size":"[]","Out split size":"[]",'
        f'"Process Group Name":"{name}","Process Group Description":"{description}",'
        f'"Process Group Ranks":"{list(ranks)}"'
    )


def _meetings(write: _Writer, s: int) -> None:
    times, rank, job = write.times, write.rank, write.times.job
    works = KERNELS + job.pieces + 1
    world = _about(range(job.ranks), "0", "default_pg")
    met = [
        (world, works + piece, times.met_start[s, piece, rank], times.met_end[s, piece, rank])
        for piece in range(job.pieces)
    ]
    if job.group:
        first = rank // job.group * job.group
        own = _about(range(first, first + job.group), str(1 + rank // job.group), "tensor")
        met += [
            (own, works + job.pieces + which, times.group_start[s, which, rank],
             times.group_end[s, which, rank])
            for which in range(2)
        ]  # fmt: skip
    for about, place, start, end in met:
        if job.on_gpu:
            called = times.launched[s, place, rank]
            write.launch("record_param_comms", _REDUCE, called, start, end, _COMM, about)
        else:
            write.span("cpu_op", "c10d::allreduce_", start - 20_000, start)
            write.span("user_annotation", "gloo:all_reduce", start, end, tid=_GLOO)


def read_loss(write: _Writer, launched_ns: float, done_ns: float, end_ns: float) -> None:
    """The host reads the loss once the optimizer is done, and the step ends."""
    called = launched_ns + 4_000
    write.number += 1
    number, device = write.number, write.rank % PER_MACHINE
    write.span("cpu_op", "aten::item", called, end_ns, f'"External id":{number}')
    write.span("cuda_runtime", "cudaMemcpyAsync", called + 1_000, called + 3_000,
               f'"correlation":{number},"External id":{number}')  # fmt: skip
    write.span("cuda_runtime", "cudaStreamSynchronize", called + 3_000, end_ns - 500,
               f'"correlation":{number + 10**7}')  # fmt: skip
    write.span("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", done_ns + 1_000, done_ns + 3_000,
               f'"device":{device},"stream":{_COMPUTE},"correlation":{number},'
               f'"External id":{number},"bytes":4', _COMPUTE, device)  # fmt: skip
