"""Trainings of several ranks with planted faults, simulated with and without each.

What a step consists of, and what is wrong with which rank, is repeated every few steps, so that
what a period takes is what the training takes in the long run. A period is what is recorded, after
others that were not. Ranks meet in collectives and wait there for each other; who waits for whom is
not put in.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.support.gpu_trace import COMM_STREAM, GpuTrace, ms, us
from tests.support.planted import GEMM, MM, optimizer
from tests.support.rank_programs import Meet, Program, run_ranks
from tests.support.ranks_that_wait import steady_step_ns, write_ranks

_UNRECORDED_PERIODS = 2
_TENSOR = 2
"""Ranks of a tensor-parallel group."""
_TENSOR_STREAM = 24
_KINDS = ("python", "collector", "input", "item", "input", "compute", "more layers")
"""What may be wrong with a job at random; input more often."""


@dataclass(frozen=True)
class Fault:
    """What is wrong with some ranks.

    Attributes:
        kind: input, python, collector, compute, more layers, item.
        ranks: Its ranks.
        size: Microseconds per step; of compute a factor, of layers and items how many.
        steps: The steps of a period in which it happens; empty: all.
    """

    kind: str
    ranks: tuple[int, ...]
    size: float
    steps: tuple[int, ...] = ()


Without = Callable[[Fault, int], bool]
"""Whether a rank is without a fault."""

READS_LOSS = Fault("item", (), 1)
"""What stands for all reading of losses on a rank."""


def nothing(fault: Fault, rank: int) -> bool:
    """No rank is without a fault."""
    del fault, rank
    return False


@dataclass(frozen=True)
class PlantedJob:
    """A training; times are in microseconds.

    Attributes:
        seed: Of the noise.
        ranks: How many.
        style: data, sharded (as FSDP), or tensor (pairs of ranks, and data parallel over these).
        steps: Of a period.
        layers: Of the model.
        kernels: Of a layer's forward pass.
        kernel: How long each of them runs; twice that in the backward pass.
        dispatch: What the host needs for each.
        transfer: How long a bucket's reduction takes once all ranks have come.
        noise: By how much lengths of kernels and transfers vary.
        offset_ms: How far clocks of ranks are apart at most.
        starts_idle: Whether the device is idle when the recording begins.
        reads_loss: Whether the host waits for the loss at the end of each step.
        sync_records: As `GpuTrace` has it.
        faults: What is wrong.
    """

    seed: int = 0
    ranks: int = 4
    style: str = "data"
    steps: int = 3
    layers: int = 4
    kernels: int = 1
    kernel: float = 100
    dispatch: float = 4
    transfer: float = 100
    noise: float = 0.0
    offset_ms: float = 0
    starts_idle: bool = False
    reads_loss: bool = False
    sync_records: bool = False
    faults: tuple[Fault, ...] = ()

    def run(self, without: Without = nothing, transfers: float = 1.0) -> list[GpuTrace]:
        """All of the training, without some faults, or with transfers so many times as long."""
        return run_ranks(partial(self._program, without, transfers, None), self.ranks)

    def step_ns(self, without: Without = nothing, transfers: float = 1.0) -> float:
        """What a step takes in the long run."""
        last = (1 + _UNRECORDED_PERIODS) * self.steps - 1
        traces = self.run(without, transfers)
        return sum(steady_step_ns(t, last - self.steps, last) for t in traces) / len(traces)

    def write(self, folder: Path) -> Path:
        """Write what the ranks' recorders see, each on its own clock."""
        begins: dict[int, int] = {}
        program = partial(self._program, nothing, 1.0, begins)
        traces = run_ranks(program, self.ranks, sync_records=self.sync_records)
        dice = random.Random(self.seed)
        for rank, t in enumerate(traces):
            t.events = [one for one in t.events if one["ph"] == "i" or one["ts"] >= begins[rank]]
            offset_ns = ms(dice.uniform(-self.offset_ms, self.offset_ms)) if rank else 0
            for event in t.events:
                event["ts"] += offset_ns
        return write_ranks(traces, folder)

    def _program(
        self,
        without: Without,
        transfers: float,
        begins: dict[int, int] | None,
        t: GpuTrace,
        rank: int,
    ) -> Program:
        t.memory(55 << 30)
        for number in range((1 + _UNRECORDED_PERIODS) * self.steps):
            if number == _UNRECORDED_PERIODS * self.steps and begins is not None:
                if self.starts_idle:
                    t.sync()
                begins[rank] = t.now
            with t.step():
                yield from _Step(self, number % self.steps, t, rank, without, transfers).run()
        t.sync()


def chosen(seed: int) -> PlantedJob:
    """A job at random."""
    dice = random.Random(seed)
    style = dice.choice(("data", "sharded", "tensor"))
    ranks = 4 if style == "tensor" else dice.choice((2, 3, 4))
    layers, kernels = 4, dice.choice((1, 3))
    kernel, dispatch = dice.choice((30, 100, 400)), dice.choice((4, 15, 40))
    usual = layers * kernels * 3 * max(kernel, dispatch + 8)
    faults = []
    for _ in range(dice.choice((0, 1, 1, 2, 3))):
        kind = dice.choice(_KINDS)
        count = dice.choice((1, 1, dice.randint(1, ranks), ranks))
        size = {
            "compute": dice.uniform(1.1, 2.0),
            "more layers": dice.randint(1, 3),
            "item": layers,
        }.get(kind, usual * dice.uniform(0.1, 1.5))
        faults.append(Fault(kind, tuple(sorted(dice.sample(range(ranks), count))), size))
    return PlantedJob(
        seed=seed,
        ranks=ranks,
        style=style,
        steps=dice.choice((2, 3)),
        layers=layers,
        kernels=kernels,
        kernel=kernel,
        dispatch=dispatch,
        transfer=dice.choice((0.1, 0.5, 1.5)) * kernels * kernel * 2,
        noise=dice.choice((0.0, 0.01, 0.03)),
        offset_ms=dice.choice((0, 0.9, 50)),
        starts_idle=dice.random() < 0.5,
        reads_loss=dice.random() < 0.5,
        sync_records=dice.random() < 0.5,
        faults=tuple(faults),
    )


class _Step:
    """A step of a rank."""

    def __init__(
        self, job: PlantedJob, at: int, t: GpuTrace, rank: int, without: Without, transfers: float
    ) -> None:
        self.job, self.t, self.rank = job, t, rank
        self.transfers = transfers
        self.noise = random.Random(f"{job.seed} {rank} {at}")
        self.noise_of_all = random.Random(f"{job.seed} {at}")
        self.faults = [
            one
            for one in job.faults
            if rank in one.ranks and (at in one.steps or not one.steps) and one.kind != "item"
            if not without(one, rank)
        ]
        losses = [one.size for one in job.faults if one.kind == "item" and rank in one.ranks]
        self.losses = round(max(losses, default=0))
        self.waits_for_losses = not without(READS_LOSS, rank)

    def run(self) -> Program:
        t = self.t
        t.data_wait(us(30 + self._sum("input")))
        t.python(us(self._sum("python")))
        if self._sum("collector"):
            t.gc_pause(us(self._sum("collector")))
        yield from (self._sharded() if self.job.style == "sharded" else self._replicated())
        optimizer(t)
        if self.job.reads_loss:
            self._read_loss()

    def _replicated(self) -> Program:
        job, t, rank = self.job, self.t, self.rank
        in_tensor, line, name = None, tuple(range(job.ranks)), "0"
        if job.style == "tensor":
            first = rank - rank % _TENSOR
            in_tensor = self._meet(
                "all_reduce", 0.2, range(first, first + _TENSOR), f"tp{first}", _TENSOR_STREAM
            )
            line, name = tuple(range(rank % _TENSOR, job.ranks, _TENSOR)), f"dp{rank % _TENSOR}"
        for layer in range(job.layers):
            self._kernels(job.kernel)
            if layer < self.losses:
                self._read_loss()
            if in_tensor is not None:
                t.wait_collective((yield in_tensor))
        reduced = None
        with t.thread():
            for layer in range(job.layers):
                self._backward()
                if in_tensor is not None:
                    t.wait_collective((yield in_tensor))
                if layer % 2:
                    reduced = yield self._meet("all_reduce", 1, line, name)
        assert reduced is not None
        t.wait_collective(reduced)

    def _sharded(self) -> Program:
        job, t = self.job, self.t
        ahead = yield self._meet("all_gather", 0.5, waits=False)
        for layer in range(job.layers):
            gathered = ahead
            if layer + 1 < job.layers:
                ahead = yield self._meet("all_gather", 0.5)
            t.wait_collective(gathered)
            self._kernels(job.kernel)
            if layer < self.losses:
                self._read_loss()
        with t.thread():
            for _ in range(job.layers):
                t.wait_collective((yield self._meet("all_gather", 0.5, waits=False)))
                self._backward()
                reduced = yield self._meet("reduce_scatter", 0.5)
        t.wait_collective(reduced)

    def _backward(self) -> None:
        with self.t.op("autograd::engine::evaluate_function: MmBackward0", after=us(2)):
            self._kernels(2 * self.job.kernel)

    def _kernels(self, length: float) -> None:
        factor = math.prod(one.size for one in self.faults if one.kind == "compute")
        for _ in range(self.job.kernels + round(self._sum("more layers"))):
            took = us(length * factor * self.noise.lognormvariate(0, self.job.noise))
            self.t.op("aten::mm", **MM, before=us(self.job.dispatch)).launch(GEMM, took)

    def _meet(
        self,
        kind: str,
        share: float,
        ranks: Sequence[int] = (),
        name: str = "0",
        stream: int = COMM_STREAM,
        *,
        waits: bool = True,
    ) -> Meet:
        took = self.job.transfer * share * self.noise_of_all.lognormvariate(0, self.job.noise)
        took_ns = max(us(1), us(took * self.transfers))
        return Meet(kind, round(64 * share) << 20, took_ns, tuple(ranks), name, stream, waits)

    def _read_loss(self) -> None:
        if self.waits_for_losses:
            self.t.item()
            return
        with self.t.op("aten::item"), self.t.op("aten::_local_scalar_dense"):
            self.t.copy("DtoH", 4, us(1.5), blocking=False)

    def _sum(self, kind: str) -> float:
        return sum(one.size for one in self.faults if one.kind == kind)
