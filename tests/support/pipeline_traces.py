"""Traces of the stages of a pipeline (1F1B), whose sends and receives wait for each other.

A SendRecv kernel runs from the moment its rank comes to it until the data is exchanged, so it must
be told how long: that depends on the other stage. The programmes run again and again, each time
with what the last time showed, until nothing changes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field

from tests.support.gpu_trace import GpuTrace, ms
from tests.support.planted import GEMM, MM

SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
_RECEIVES, _SENDS = 20, 21
_MOST_ROUNDS = 2000


@dataclass(frozen=True)
class Pipeline:
    """What is simulated.

    Attributes:
        stages: Number of stages, one rank each.
        batches: Micro-batches of a step.
        steps: Steps.
        forward_ns: How long the forward of (stage, micro-batch) takes; backward takes twice that.
        transfer_ns: How long data moves once both ends are there.
        has_engine: Whether the backward has the ranges of autograd's engine, as torch records it.
    """

    stages: int = 4
    batches: int = 8
    steps: int = 4
    forward_ns: Callable[[int, int], int] = field(default=lambda stage, batch: ms(2))
    transfer_ns: int = 100_000
    has_engine: bool = False


ComparedRank = tuple[int, int, str, int]
"""Sending stage, receiving stage, direction and number over the whole trace."""


def pipeline_traces(job: Pipeline) -> list[GpuTrace]:
    """One trace per stage, on one clock."""
    known: dict[tuple[int, ComparedRank], int] = {}
    for _ in range(_MOST_ROUNDS):
        begun: dict[tuple[int, ComparedRank], int] = {}
        traces = [_stage(job, stage, known, begun) for stage in range(job.stages)]
        found = {
            (stage, meeting): max(begun[meeting[0], meeting], begun[meeting[1], meeting])
            + job.transfer_ns
            - start
            for (stage, meeting), start in begun.items()
        }
        if found == known:
            return traces
        known = found
    raise AssertionError("the pipeline is stuck")


def _stage(
    job: Pipeline,
    stage: int,
    lengths: dict[tuple[int, ComparedRank], int],
    begun: dict[tuple[int, ComparedRank], int],
) -> GpuTrace:
    t = GpuTrace(rank=stage, world_size=job.stages, device=stage)
    passed: dict[tuple[int, str], int] = {}

    def exchange(other: int, way: str, *, sends: bool) -> None:
        number = passed.get((other, way), 0)
        passed[other, way] = number + 1
        meeting = (stage, other, way, number) if sends else (other, stage, way, number)
        stream = (_SENDS if sends else _RECEIVES) + (0 if way == "forward" else 2)
        word = "send" if sends else "recv"
        about = {
            "Collective name": word,
            "In msg nelems": 1 << 20,
            "Out msg nelems": 1 << 20,
            "Group size": job.stages,
            "dtype": "BFloat16",
            "Process Group Name": "1",
            "Process Group Ranks": json.dumps(list(range(job.stages))),
            "Dst Rank" if sends else "Src Rank": other,
        }
        length = lengths.get((stage, meeting), job.transfer_ns)
        with t.op(f"c10d::{word}"), t.op("record_param_comms", **about):
            t.wait_event(t.record_event(), stream)
            t.launch(SEND_RECV, length, stream=stream, **about)
        begun[stage, meeting] = t.work[-1].start_ns
        if not sends:
            t.wait_event(t.record_event(stream))

    for _ in range(job.steps):
        with t.step():
            for way, batch in _one_forward_one_backward(job, stage):
                on = 1 if way == "forward" else -1
                if 0 <= stage - on < job.stages:
                    exchange(stage - on, way, sends=False)
                length = job.forward_ns(stage, batch) * (1 if way == "forward" else 2)
                engine = "autograd::engine::evaluate_function: MmBackward0"
                within = job.has_engine and way == "backward"
                with t.op(engine) if within else nullcontext():
                    t.op("aten::mm", **MM).launch(GEMM, length)
                if 0 <= stage + on < job.stages:
                    exchange(stage + on, way, sends=True)
            t.op("aten::_fused_adamw_").launch("multi_tensor_apply_kernel", ms(1))
            t.item()
    return t


def _one_forward_one_backward(job: Pipeline, stage: int) -> Iterator[tuple[str, int]]:
    ahead = min(job.stages - stage - 1, job.batches)
    yield from (("forward", batch) for batch in range(ahead))
    for batch in range(job.batches - ahead):
        yield "forward", ahead + batch
        yield "backward", batch
    yield from (("backward", batch) for batch in range(job.batches - ahead, job.batches))
