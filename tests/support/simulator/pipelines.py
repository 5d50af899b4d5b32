"""Jobs of pipelines (1F1B) that train beside each other, healthy or with a slow stage or rank.

    job = random_pipeline(seed=7, plant="slow stage")
    times = simulate_pipeline(job)
    write_pipeline(times, folder)
    saving_ns = times.step_ns - simulate_pipeline(job.healed).step_ns

Ranks are numbered by stage, and within a stage by replica. A stage receives, computes and sends
one micro-batch after the other; a send or receive ends when both ends have come and the data has
moved. Then the ranks of a stage reduce gradients, all ranks the norm, and the optimizer runs. The
host launches a step at once and waits for its end.

The same seed has the same noise with and without what is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.support.simulator.many_ranks import MS, PER_MACHINE, Plant

Times = npt.NDArray[np.float64]

PLANTS = ("slow stage", "slow rank", "healthy")
FORWARD, BACKWARD = "forward", "backward"
_WARM_UP = 2


@dataclass(frozen=True)
class PipelineJob:
    """A job.

    Attributes:
        stages: How many.
        replicas: Ranks of each stage.
        plant: What is wrong: `ranks` compute for `share` longer.
        batches: Micro-batches of a step.
        active: Steps recorded.
        wander: By how much the pace of a rank differs from micro-batch to micro-batch.
        seed: For all that is random.
    """

    stages: int = 4
    replicas: int = 2
    plant: Plant = field(default_factory=Plant)
    batches: int = 8
    active: int = 4
    wander: float = 0.01
    seed: int = 0

    @property
    def ranks(self) -> int:
        return self.stages * self.replicas

    @property
    def healed(self) -> PipelineJob:
        """The same without what is wrong."""
        return replace(self, plant=replace(self.plant, kind="healthy", share=0.0))

    def stage(self, rank: int) -> int:
        return rank // self.replicas

    def ranks_of(self, stage: int) -> list[int]:
        return list(range(stage * self.replicas, (stage + 1) * self.replicas))


@dataclass(frozen=True)
class Piece:
    """Work on a GPU. `group` and `other` are those of communication."""

    kind: str  # compute, optimizer, send, recv, data, world
    start_ns: float
    end_ns: float
    launched_ns: float
    other: int = -1
    stream: int = 7


@dataclass(frozen=True)
class PipelineTimes:
    """What the ranks did: by step and rank the pieces, and when steps began and ended."""

    job: PipelineJob
    pieces: list[list[list[Piece]]]
    start: Times
    end: Times
    clock_ns: Times
    drift: Times

    @property
    def step_ns(self) -> float:
        """The mean step, from the end of the first to that of the last."""
        ends = self.end.max(axis=1)
        return float((ends[-1] - ends[_WARM_UP - 1]) / self.job.active)


def simulate_pipeline(job: PipelineJob) -> PipelineTimes:
    """Run a job."""
    dice = np.random.default_rng(job.seed)
    steps = _WARM_UP + job.active
    forward_ns = dice.choice((1.0, 3.0, 8.0)) * MS
    transfer_ns = forward_ns * dice.uniform(0.02, 0.1)
    pace = dice.lognormal(0, job.wander, (steps, job.ranks, 2, job.batches))
    machine = np.arange(job.ranks) // PER_MACHINE
    clock_ns = (dice.uniform(-50, 50, job.ranks) * MS)[machine]
    is_slow = np.isin(np.arange(job.ranks), job.plant.ranks)
    slower = np.where(is_slow, 1 + job.plant.share, 1.0)
    start, end = np.zeros((steps, job.ranks)), np.zeros((steps, job.ranks))
    pieces: list[list[list[Piece]]] = []
    host = np.zeros(job.ranks)
    for s in range(steps):
        start[s] = host
        work_ns = {FORWARD: forward_ns * pace[s, :, 0], BACKWARD: 2 * forward_ns * pace[s, :, 1]}
        found: list[list[Piece]] = [[] for _ in range(job.ranks)]
        ends = np.zeros(job.ranks)
        for replica in range(job.replicas):
            ranks = [stage * job.replicas + replica for stage in range(job.stages)]
            for rank, own in zip(
                ranks, _one_replica(job, ranks, host, work_ns, slower, transfer_ns), strict=True
            ):
                found[rank] = own
                ends[rank] = max(one.end_ns for one in own)
        for stage in range(job.stages if job.replicas > 1 else 0):
            _meet(found, job.ranks_of(stage), ends, "data", transfer_ns)
        _meet(found, list(range(job.ranks)), ends, "world", 20_000)
        for rank in range(job.ranks):
            begin = ends[rank] + 5_000
            last = found[rank][-1].launched_ns + 8_000
            found[rank].append(Piece("optimizer", begin, begin + 0.5 * forward_ns, last))
            end[s, rank] = begin + 0.5 * forward_ns + 8_000
        host = end[s] + 20_000 + dice.uniform(0, 20_000, job.ranks)
        pieces.append(found)
    return PipelineTimes(job, pieces, start, end, clock_ns, np.zeros(job.ranks))


def _meet(
    found: list[list[Piece]], ranks: list[int], ends: Times, kind: str, transfer_ns: float
) -> None:
    begin = ends[ranks] + 5_000
    over = begin.max() + transfer_ns
    for rank, at in zip(ranks, begin.tolist(), strict=True):
        called = found[rank][-1].launched_ns + 8_000
        found[rank].append(Piece(kind, at, over, called, stream=20))
        ends[rank] = over


def _one_replica(
    job: PipelineJob,
    ranks: list[int],
    host: Times,
    work_ns: dict[str, Times],
    slower: Times,
    transfer_ns: float,
) -> list[list[Piece]]:
    """What the stages of a replica do up to the end of their last backward."""
    orders = [list(_one_forward_one_backward(job, stage)) for stage in range(job.stages)]
    found: list[list[Piece]] = [[] for _ in ranks]
    free = [host[rank] + 50_000.0 for rank in ranks]  # the compute stream
    calls = [host[rank] + 20_000.0 for rank in ranks]
    streams: list[dict[str, float]] = [{} for _ in ranks]
    sent: dict[tuple[int, str, int], tuple[int, float, float]] = {}
    done = [0] * job.stages
    while any(place < len(order) for place, order in zip(done, orders, strict=True)):
        for stage, rank in enumerate(ranks):
            if done[stage] == len(orders[stage]):
                continue
            way, batch = orders[stage][done[stage]]
            on = 1 if way == FORWARD else -1
            if 0 <= stage - on < job.stages:
                ahead = sent.get((stage - on, way, batch))
                if ahead is None:
                    continue
                place, begun, called = ahead
                calls[stage] += 8_000
                posted = max(free[stage], calls[stage] + 5_000, streams[stage].get(way, 0.0))
                over = max(posted, begun) + transfer_ns
                lane = 22 if way == FORWARD else 23
                here, there = ranks[stage], ranks[stage - on]
                found[stage].append(Piece("recv", posted, over, calls[stage], there, lane))
                found[stage - on][place] = Piece("send", begun, over, called, here, lane + 2)
                streams[stage][way] = over
                free[stage] = over
            calls[stage] += 8_000
            begin = max(free[stage], calls[stage] + 5_000)
            free[stage] = begin + work_ns[way][rank, batch] * slower[rank]
            found[stage].append(Piece("compute", begin, free[stage], calls[stage]))
            if 0 <= stage + on < job.stages:
                calls[stage] += 8_000
                sent[stage, way, batch] = (len(found[stage]), free[stage] + 3_000, calls[stage])
                found[stage].append(Piece("send", 0, 0, calls[stage]))
            done[stage] += 1
    return found


def _one_forward_one_backward(job: PipelineJob, stage: int) -> Iterator[tuple[str, int]]:
    ahead = min(job.stages - stage - 1, job.batches)
    yield from ((FORWARD, batch) for batch in range(ahead))
    for batch in range(job.batches - ahead):
        yield FORWARD, ahead + batch
        yield BACKWARD, batch
    yield from ((BACKWARD, batch) for batch in range(job.batches - ahead, job.batches))


def write_pipeline(times: PipelineTimes, folder: Path) -> Path:
    """Write a folder of traces."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(times.job.ranks):
        (folder / f"rank{rank}.pt.trace.json").write_text(_trace(times, rank))
    return folder


def _trace(times: PipelineTimes, rank: int) -> str:
    from tests.support.simulator.many_ranks_files import EPOCH_NS

    job = times.job
    header: dict[str, Any] = {
        "schemaVersion": 1, "displayTimeUnit": "ms", "host_name": f"node{rank // PER_MACHINE}",
        "baseTimeNanoseconds": EPOCH_NS,
        "deviceProperties": [{
            "id": rank % PER_MACHINE, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 80 << 30,
            "computeMajor": 8, "computeMinor": 0, "numSms": 108,
        }],
        "distributedInfo": {
            "backend": "nccl", "rank": rank, "world_size": job.ranks, "pg_count": 3,
            "pg_config": [
                {"pg_name": name, "pg_desc": what, "pg_size": len(ranks), "ranks": ranks}
                for name, what, ranks in _groups(job, rank).values()
            ],
        },
    }  # fmt: skip
    body = ",\n".join(_events(times, rank))
    return json.dumps(header)[:-1] + ',"traceEvents":[\n' + body + "\n]}"


def _groups(job: PipelineJob, rank: int) -> dict[str, tuple[str, str, list[int]]]:
    stage, replica = job.stage(rank), rank % job.replicas
    inside = [replica + other * job.replicas for other in range(job.stages)]
    return {
        "world": ("0", "default_pg", list(range(job.ranks))),
        "data": (str(1 + stage), "DATA_PARALLEL_GROUP", job.ranks_of(stage)),
        "pipeline": (str(100 + replica), "PIPELINE_MODEL_PARALLEL_GROUP", inside),
    }


def _events(times: PipelineTimes, rank: int) -> list[str]:
    from tests.support.simulator import many_ranks_files as files

    job, groups = times.job, _groups(times.job, rank)
    write = files._Writer(times, rank)
    write.lines.append(
        f'{{"ph":"M","name":"thread_name","pid":{100 + rank},"tid":{files._MAIN},"ts":0,'
        '"args":{"name":"python"}}'
    )
    for s in range(_WARM_UP, _WARM_UP + job.active):
        start, end = times.start[s, rank], times.end[s, rank]
        write.span("user_annotation", f"ProfilerStep#{s}", start, end)
        for one in times.pieces[s][rank]:
            begin, until, called = one.start_ns, one.end_ns, one.launched_ns
            if one.kind in ("compute", "optimizer"):
                operator, kernel = "aten::mm", files._GEMM
                if one.kind == "optimizer":
                    operator, kernel = "aten::_fused_adamw_", files._ADAM
                write.launch(operator, kernel, called, begin, until, one.stream)
                continue
            name, _, ranks = groups["pipeline" if one.other >= 0 else one.kind]
            word = one.kind if one.other >= 0 else "allreduce"
            about = (
                f',"Collective name":"{word}","In msg nelems":1048576,"Out msg nelems":1048576,'
                f'"Group size":{len(ranks)},"dtype":"BFloat16","Process Group Name":"{name}",'
                f'"Process Group Ranks":"{ranks}"'
            )
            kernel = files._REDUCE
            if one.other >= 0:
                about += f',"{"Dst" if one.kind == "send" else "Src"} Rank":{one.other}'
                kernel = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
            write.launch("record_param_comms", kernel, called, begin, until, one.stream, about)
        files.read_loss(
            write, times.pieces[s][rank][-1].launched_ns, times.pieces[s][rank][-1].end_ns, end
        )
    return write.lines


def random_pipeline(seed: int, plant: str) -> PipelineJob:
    """A job of 4 to 24 ranks that is healthy, or has one stage or one rank that is slow."""
    dice = np.random.default_rng(seed)
    stages = int(dice.choice((2, 4, 4, 8)))
    replicas = int(dice.choice((2, 4) if stages < 8 else (2, 3)))
    stage, share = int(dice.integers(stages)), float(dice.uniform(0.15, 0.6))
    job = PipelineJob(
        stages,
        replicas,
        batches=int(dice.choice((4, 8, 12))),
        active=int(dice.choice((3, 4, 5))),
        wander=float(dice.choice((0.005, 0.01, 0.02))),
        seed=seed,
    )
    who = job.ranks_of(stage)
    if plant == "slow rank":
        who = [who[int(dice.integers(replicas))]]
    if plant == "healthy":
        who, share = [], 0.0
    return replace(job, plant=Plant(plant, tuple(who), share))
