"""Tables of a pipeline-parallel job's operations, from an event-driven simulation of their own.

Unlike the product, this knows the schedule and the durations, and finds starts and ends by
repeating "start when everything needed has happened" until nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import polars as pl

MILLISECOND = 1_000_000
FORWARD, BACKWARD = "forward", "backward"


@dataclass(frozen=True)
class Job:
    """A job to be simulated; times in nanoseconds.

    `compute_ns` gives the duration of (step, replica, stage, direction, micro-batch), `move_ns`
    that of moving data once both ends are there, for (step, replica, kind).
    """

    replicas: int = 2
    stages: int = 4
    micro_batches: int = 8
    chunks: int = 1
    steps: int = 3
    compute_ns: Callable[[int, int, int, str, int], int] = field(
        default=lambda step, replica, stage, way, batch: (
            (10 if way == FORWARD else 20) * MILLISECOND
        )
    )
    move_ns: Callable[[int, int, str], int] = field(default=lambda step, replica, kind: MILLISECOND)


def table_of(job: Job) -> pl.DataFrame:
    """The job's operations, as a recorder would note them."""
    schedule = _schedule(job)
    rows = []
    for step in range(job.steps):
        rows += _simulated(job, schedule, step)
    return pl.DataFrame(rows, orient="row", schema=_SCHEMA).with_columns(
        pl.col("start_ts", "duration") / 1e9
    )


def step_times(table: pl.DataFrame) -> dict[int, int]:
    """The duration of each step in nanoseconds."""
    ends = table.group_by("step", maintain_order=True).agg(
        ((pl.col("start_ts") + pl.col("duration")).max() - pl.col("start_ts").min()) * 1e9
    )
    return {int(step): round(time) for step, time in ends.iter_rows()}


_SCHEMA = {
    "dp_rank": pl.Int64, "stage": pl.Int64, "rank": pl.Int64, "step": pl.Int64,
    "optype": pl.String, "seq_id": pl.Int64, "mc": pl.Int64, "gmc": pl.Int64, "mb_id": pl.Int64,
    "start_ts": pl.Float64, "duration": pl.Float64,
}  # fmt: skip

Work = tuple[str, int, int]  # direction, chunk in the stage, micro-batch


def _schedule(job: Job) -> list[list[Work]]:
    """What each stage computes in which order: backward as soon as it can, in order of arrival."""
    last = job.stages * job.chunks - 1
    arrived: list[list[Work]] = [[] for _ in range(job.stages)]
    fresh = [(FORWARD, 0, batch) for batch in range(job.micro_batches)]
    order: list[list[Work]] = [[] for _ in range(job.stages)]
    total = 2 * job.micro_batches * job.chunks
    while any(len(done) < total for done in order):
        sent: list[tuple[int, Work]] = []
        for stage in range(job.stages):
            queue = arrived[stage]
            ahead = sum(1 if way == FORWARD else -1 for way, _, _ in order[stage])
            backward = [work for work in queue if work[0] == BACKWARD]
            forward = [work for work in queue if work[0] == FORWARD]
            if backward:
                work = backward[0]
                queue.remove(work)
            elif forward:
                work = forward[0]
                queue.remove(work)
            elif stage == 0 and fresh and ahead < job.stages * job.chunks:
                work = fresh.pop(0)
            else:
                continue
            order[stage].append(work)
            way, chunk, batch = work
            place = chunk * job.stages + stage
            if way == FORWARD and place == last:
                sent.append((stage, (BACKWARD, chunk, batch)))
            elif not (way == BACKWARD and place == 0):
                to = place + (1 if way == FORWARD else -1)
                sent.append((to % job.stages, (way, to // job.stages, batch)))
        for stage, work in sent:
            arrived[stage].append(work)
    return order


def _simulated(job: Job, schedule: list[list[Work]], step: int) -> list[tuple[object, ...]]:
    ends: dict[tuple[object, ...], int] = {}  # (replica, stage, kind, seq) -> end
    starts: dict[tuple[object, ...], int] = {}
    needs: dict[tuple[object, ...], list[tuple[object, ...]]] = {}
    groups: list[list[tuple[object, ...]]] = []
    about: dict[tuple[object, ...], tuple[int, int, int]] = {}  # chunk, model chunk, micro-batch
    last_place = job.stages * job.chunks - 1
    for replica in range(job.replicas):
        transfers: dict[tuple[str, int], list[tuple[object, ...]]] = {}
        for stage, works in enumerate(schedule):
            _stage(job, replica, stage, works, last_place, needs, groups, about, transfers)
        for (kind, stage), sends in transfers.items():
            if kind.endswith("send"):
                step_on = 1 if kind.startswith(FORWARD) else -1
                peers = transfers[kind[:-4] + "recv", (stage + step_on) % job.stages]
                groups += [list(pair) for pair in zip(sends, peers, strict=True)]
        ends_of_model = sorted({0, job.stages - 1})
        groups.append([(replica, s, "embedding-grads-all-reduce", 0) for s in ends_of_model])
    for stage in range(job.stages):
        for kind in ("params-all-gather", "grads-reduce-scatter"):
            groups.append([(replica, stage, kind, 0) for replica in range(job.replicas)])
    groups.append(
        [
            (r, s, "optimizer-clip-main-grad", 0)
            for r in range(job.replicas)
            for s in range(job.stages)
        ]
    )
    group_of = {op: group for group in groups for op in group}
    while len(ends) < len(needs):
        before = len(ends) + len(starts)
        for op, needed in needs.items():
            if op not in starts and all(other in ends for other in needed):
                starts[op] = max((ends[other] for other in needed), default=0)
            group = group_of.get(op)
            if op in starts and op not in ends:
                if group is None:
                    ends[op] = starts[op] + _alone_ns(job, step, op, about)
                elif all(other in starts for other in group):
                    latest = max(starts[other] for other in group)
                    ends[op] = latest + job.move_ns(step, int(str(op[0])), str(op[2]))
        assert len(ends) + len(starts) > before, "the schedule is stuck"
    base = step * 10**11
    return [
        (
            op[0], op[1], int(str(op[0])) * job.stages + int(str(op[1])), step, op[2], op[3],
            *about[op], base + starts[op], ends[op] - starts[op],
        )
        for op in needs
    ]  # fmt: skip


def _stage(job, replica, stage, works, last_place, needs, groups, about, transfers):  # type: ignore[no-untyped-def]
    counts = {FORWARD: 0, BACKWARD: 0}
    previous: list[tuple[object, ...]] = []
    tails: dict[str, list[tuple[object, ...]]] = {}
    computed: dict[str, tuple[object, ...]] = {}
    gather = (replica, stage, "params-all-gather", 0)
    needs[gather], about[gather] = [], (0, -1, -1)
    first_backward = next(i for i, work in enumerate(works) if work[0] == BACKWARD)
    done: list[tuple[object, ...]] = []
    for way, chunk, batch in works:
        place = chunk * job.stages + stage
        op = (replica, stage, f"{way}-compute", counts[way])
        about[op] = (chunk, place, batch)
        needs[op] = [*previous]
        if way == FORWARD and not counts[FORWARD]:
            needs[op].append(gather)
        has_source = place > 0 if way == FORWARD else place < last_place
        has_target = place < last_place if way == FORWARD else place > 0
        for end, moves in (("recv", has_source), ("send", has_target)):
            if not moves and job.chunks == 1:
                continue  # noted, but idle, only where chunks are interleaved
            kind = f"{way}-{end}"
            queue = tails.setdefault(kind, [])
            transfer = (replica, stage, kind, len(queue))
            about[transfer] = (-1, -1, -1)
            needs[transfer] = [*queue[-1:]]
            if end == "recv":
                needs[transfer] += [computed[way]] if way in computed else []
                needs[op].append(transfer)
            else:
                needs[transfer].append(op)
            if way == BACKWARD and not queue and first_backward >= 2:
                needs[transfer].append(done[first_backward - 2])
            queue.append(transfer)
            if moves:
                transfers.setdefault((kind, stage), []).append(transfer)
            else:
                groups.append([transfer])
        counts[way] += 1
        computed[way] = op
        previous = [op]
        done.append(op)
    chain = ["gc", "layernorm-grads-all-reduce"]
    chain += ["embedding-grads-all-reduce"] if stage in {0, job.stages - 1} else []
    chain += ["grads-reduce-scatter", "optimizer-clip-main-grad", "optimizer"]
    for kind in chain:
        op = (replica, stage, kind, 0)
        needs[op] = [*previous, *([gather] if kind == "grads-reduce-scatter" else [])]
        about[op] = (0 if kind == "grads-reduce-scatter" else -1, -1, -1)
        previous = [op]


def _alone_ns(job, step, op, about):  # type: ignore[no-untyped-def]
    replica, stage, kind, _ = op
    if kind.endswith("-compute"):
        return job.compute_ns(step, replica, stage, kind.split("-")[0], about[op][2])
    return {"gc": 0, "layernorm-grads-all-reduce": 50_000, "optimizer": 5 * MILLISECOND}[kind]
