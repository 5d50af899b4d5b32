"""Tells from a table of operations which waits for which: the schedule of a training pipeline.

The rules are those of the published what-if analysis of stragglers (arXiv 2505.05713 and its
artifact), restated. Within a worker:

    1. Computations (forward and backward) run one after the other, in the order they were started.
    2. Each type of point-to-point transfer runs on a stream of its own, one after the other.
    3. A receive waits for the computation of its direction before the one that it feeds; that one
       waits for the receive. A send waits for the computation that it carries on.
    4. The first transfers of the backward direction wait for the second computation before the
       first backward one: they are posted there, however early the peer is.
    5. Parameter gathers and gradient reductions share a stream. The first forward computation of a
       model chunk waits for the chunk's last parameter gather.
    6. After the last computation the tail runs as a chain: garbage collection, normalisation and
       embedding gradients, gradient reductions, clipping, optimizer. Where reductions overlap with
       the backward pass (a separate reduction of the rest exists), a chunk's first reduction waits
       for the chunk's last backward computation instead, and the tail for the last reduction.

Between workers: the n-th send of a stage meets the n-th receive of its neighbour; parameter
gathers and gradient reductions meet over all replicas; embedding gradients of the first and the
last stage meet within a replica; clipping meets over everything.

A recorder may note transfers that move nothing: receives after the last computation has started,
sends before the first has ended, and those at the two ends of the model. They meet nobody.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from stepscope.fleet.what_if.operations import Operations
from stepscope.fleet.what_if.program import Exchange, Program, assemble

FORWARD, BACKWARD = "forward", "backward"
GATHER, REDUCE = "params-all-gather", "grads-reduce-scatter"
REDUCE_REST = "separate-grads-all-reduce"
COLLECTION, NORMALISATION = "gc", "layernorm-grads-all-reduce"
EMBEDDING, CLIPPING, OPTIMIZER = (
    "embedding-grads-all-reduce",
    "optimizer-clip-main-grad",
    "optimizer",
)
COMPUTATIONS = (f"{FORWARD}-compute", f"{BACKWARD}-compute")
POINT_TO_POINT = tuple(f"{way}-{end}" for way in (FORWARD, BACKWARD) for end in ("send", "recv"))
OVER_REPLICAS = (GATHER, REDUCE, REDUCE_REST, CLIPPING)

_PEERS = {
    "forward-send": ("forward-recv", 1),
    "forward-recv": ("forward-send", -1),
    "backward-send": ("backward-recv", -1),
    "backward-recv": ("backward-send", 1),
}
_CLOCK_SLACK_NS = 50_000
"""Starts that are no further apart are taken as the same moment."""


@dataclass(frozen=True)
class _Operation:
    number: int  # in the replica
    stage: int
    kind: str
    nth: int  # of its kind and stage
    chunk: int
    model_chunk: int
    start_ns: int
    end_ns: int


def pipeline_of(operations: Operations, name: str = "operations") -> tuple[Program, int]:
    """What waits for what, and how many transfers lack their partner: they are replayed alone."""
    stages = _stages(operations)
    is_overlapped = REDUCE_REST in operations.table["kind"]
    dependencies: list[tuple[int, int]] = []
    exchanges: list[Exchange] = []
    carrying: list[_Operation] = []
    for stage in stages:
        fed, idle = _transfers(stage, operations.stages, dependencies)
        carrying += fed
        exchanges += [Exchange((op.number,)) for op in idle]
        dependencies += _chain(stage.computations)
        for kind in POINT_TO_POINT:
            dependencies += _chain(stage.of(kind))
        dependencies += _first_backward_transfers(stage)
        dependencies += _shared_parameters(stage, is_overlapped=is_overlapped)
        dependencies += _tail(stage, is_overlapped=is_overlapped)
        exchanges += [
            Exchange((op.number,), spans_replicas=True)
            for op in stage.of(GATHER, REDUCE, REDUCE_REST)
        ]
    pairs, unmatched = _pairs(carrying, operations.stages)
    exchanges += pairs
    exchanges += _exchanges_of(EMBEDDING, [stages[0], *stages[-1:][: len(stages) - 1]], spans=False)
    exchanges += _exchanges_of(CLIPPING, stages, spans=True)
    shape = len(operations.replicas), len(operations.table)
    return assemble(shape, dependencies, exchanges, name), unmatched


class _Stage:
    """The operations of one stage, by kind, each in the order of its starts."""

    def __init__(self, number: int, found: Sequence[_Operation]) -> None:
        self.number = number
        self._by_kind: dict[str, list[_Operation]] = {}
        for op in sorted(found, key=lambda op: (op.start_ns, op.nth, op.kind)):
            self._by_kind.setdefault(op.kind, []).append(op)
        self.computations = self.of(*COMPUTATIONS)

    def of(self, *kinds: str) -> list[_Operation]:
        found = [op for kind in kinds for op in self._by_kind.get(kind, ())]
        return sorted(found, key=lambda op: (op.start_ns, op.nth, op.kind))


def _stages(operations: Operations) -> list[_Stage]:
    columns = ("operation", "stage", "kind", "number", "chunk", "model_chunk", "start_ns", "end_ns")
    rows = [_Operation(*row) for row in operations.table.select(columns).iter_rows()]
    return [
        _Stage(stage, [op for op in rows if op.stage == stage])
        for stage in range(operations.stages)
    ]


def _chain(found: Sequence[_Operation]) -> Iterator[tuple[int, int]]:
    for before, after in itertools.pairwise(found):
        yield before.number, after.number


def _transfers(
    stage: _Stage, stages: int, dependencies: list[tuple[int, int]]
) -> tuple[list[_Operation], list[_Operation]]:
    """Ties the stage's transfers to the computations; returns those that carry, and the idle."""
    last_chunk = max((op.model_chunk for op in stage.computations), default=0)
    # Chunks are dealt out in turn: the model's last is the last stage's last.
    last_chunk += stages - 1 - stage.number
    carrying: list[_Operation] = []
    idle: list[_Operation] = []
    for way in (FORWARD, BACKWARD):
        computations = sorted(stage.of(f"{way}-compute"), key=lambda op: op.nth)
        if not computations:
            idle += stage.of(f"{way}-send", f"{way}-recv")
            continue
        last_start = max(op.start_ns for op in computations) + _CLOCK_SLACK_NS
        first_end = min(op.end_ns for op in computations) - _CLOCK_SLACK_NS
        for end in ("send", "recv"):
            found = stage.of(f"{way}-{end}")
            useful = [
                op
                for op in found
                if (op.start_ns <= last_start if end == "recv" else op.end_ns >= first_end)
            ]
            idle += [op for op in found if op not in useful]
            # The first receive may be missing where the model begins.
            shift = int(end == "recv" and len(useful) == len(computations) - 1)
            for place, op in enumerate(useful, start=shift):
                if place >= len(computations):
                    idle.append(op)
                    continue
                computation = computations[place]
                if end == "send":
                    dependencies.append((computation.number, op.number))
                else:
                    dependencies.append((op.number, computation.number))
                    if place:
                        dependencies.append((computations[place - 1].number, op.number))
                at_end = 0 if (way == BACKWARD) == (end == "send") else last_chunk
                (idle if computation.model_chunk == at_end else carrying).append(op)
    return carrying, idle


def _first_backward_transfers(stage: _Stage) -> Iterator[tuple[int, int]]:
    kinds = [op.kind for op in stage.computations]
    if COMPUTATIONS[1] not in kinds or kinds.index(COMPUTATIONS[1]) < 2:
        return
    posted = stage.computations[kinds.index(COMPUTATIONS[1]) - 2]
    for kind in ("backward-recv", "backward-send"):
        for op in stage.of(kind)[:1]:
            yield posted.number, op.number


def _shared_parameters(stage: _Stage, *, is_overlapped: bool) -> Iterator[tuple[int, int]]:
    yield from _chain(stage.of(GATHER, REDUCE))
    for chunk, gather in {op.chunk: op for op in stage.of(GATHER)}.items():
        for op in _in_chunk(stage.of(COMPUTATIONS[0]), chunk)[:1]:
            yield gather.number, op.number
    if is_overlapped:
        for chunk, reduction in {op.chunk: op for op in reversed(stage.of(REDUCE))}.items():
            for op in sorted(_in_chunk(stage.of(COMPUTATIONS[1]), chunk), key=_end)[-1:]:
                yield op.number, reduction.number


def _in_chunk(found: Sequence[_Operation], chunk: int) -> list[_Operation]:
    return [op for op in found if op.chunk == chunk]


def _end(op: _Operation) -> int:
    return op.end_ns


def _tail(stage: _Stage, *, is_overlapped: bool) -> Iterator[tuple[int, int]]:
    last = sorted(stage.computations, key=_end)[-1:]
    collections = stage.of(COLLECTION)
    yield from _chain([*last, *collections])
    start = (collections or last)[-1:]
    embedding = stage.of(EMBEDDING)
    rest = [*stage.of(CLIPPING), *stage.of(OPTIMIZER)]
    reductions = stage.of(REDUCE)
    chain = [
        *stage.of(NORMALISATION),
        *embedding,
        *(stage.of(REDUCE_REST) if is_overlapped else reductions),
        *rest,
    ]
    yield from _chain([*start, *chain])
    if is_overlapped:
        yield from _chain([*reductions[-1:], *chain[:1]])


def _pairs(carrying: Sequence[_Operation], stages: int) -> tuple[list[Exchange], int]:
    """The n-th transfer of a kind and stage meets the n-th of its peer."""
    queues: dict[tuple[str, int], list[_Operation]] = {}
    for op in carrying:
        queues.setdefault((op.kind, op.stage), []).append(op)
    exchanges, unmatched = [], 0
    for (kind, stage), sends in queues.items():
        peer_kind, distance = _PEERS[kind]
        peers = queues.get((peer_kind, (stage + distance) % stages), [])
        both = min(len(sends), len(peers))
        if kind.endswith("send"):
            exchanges += [
                Exchange((send.number, receive.number))
                for send, receive in zip(sends, peers, strict=False)
            ]
        exchanges += [Exchange((op.number,)) for op in sends[both:]]
        unmatched += len(sends) - both
    return exchanges, unmatched


def _exchanges_of(kind: str, stages: Sequence[_Stage], *, spans: bool) -> list[Exchange]:
    """The n-th operations of a kind of several stages meet."""
    queues = [stage.of(kind) for stage in stages]
    longest = max(map(len, queues))
    rounds = ([queue[nth].number for queue in queues if nth < len(queue)] for nth in range(longest))
    return [Exchange(tuple(members), spans) for members in rounds]


def is_communication(kind: str) -> bool:
    """Whether operations of a kind move data, so that their usual duration is a median."""
    return kind in {*POINT_TO_POINT, *OVER_REPLICAS, NORMALISATION, EMBEDDING}


def reported_kind() -> pl.Expr:
    """The kind under which an operation is reported: both ends of a transfer are one."""
    kind = pl.col("kind")
    return (
        pl.when(kind.is_in(POINT_TO_POINT))
        .then(kind.str.extract(r"^(forward|backward)") + "-pp-comm")
        .otherwise(kind)
    )
