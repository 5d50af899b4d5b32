"""Synthetic jobs of up to thousands of ranks, with one planted problem or none, and known clocks.

Ranks form a grid: pipeline × data × context × expert × tensor, the last running fastest. A step is

    input, then for each micro-batch and stage: receive, compute, gather over context, reduce over
    tensor, exchange over expert, send; then the same backwards; then the reduction over data, the
    optimizer, and one reduction over all ranks.

All ranks run at once, on whole arrays, in true time; only at the end are times read on each rank's
own clock. Waiting follows from the meetings alone: nothing about who waits for whom is put in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

DIMENSIONS = ("pipeline", "data", "context", "expert", "tensor")
MILLISECOND = 1_000_000
CAUSES = ("compute", "garbage_collection", "host", "input")
SLOW_LINK, LATE_START = "slow link", "late start"
PROBLEMS = ("input", "compute", "host", "garbage_collection", LATE_START, SLOW_LINK)
EPOCH_NS = 1_700_000_000_000_000_000


@dataclass(frozen=True)
class Problem:
    """What is wrong with one rank.

    `share` is by how much of a healthy step it is late in each step (late start: once; slow link:
    by what factor its transfers take longer).
    """

    kind: str
    rank: int
    share: float


@dataclass(frozen=True)
class Grid:
    """How a job's ranks are arranged, and what it does."""

    pipeline: int = 4
    data: int = 16
    context: int = 2
    expert: int = 2
    tensor: int = 4
    steps: int = 6
    micro_batches: int = 3
    between_steps_ns: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.pipeline, self.data, self.context, self.expert, self.tensor)

    @property
    def ranks(self) -> int:
        return int(np.prod(self.shape))


def grid_of(ranks: int, steps: int = 6) -> Grid:
    """A grid of 8, 64, 512 or 1,024 ranks."""
    sizes = {4: (1, 4, 1, 1, 1), 8: (2, 2, 1, 1, 2), 16: (2, 2, 1, 2, 2), 64: (2, 4, 2, 2, 2),
             512: (4, 8, 2, 2, 4), 1024: (4, 16, 2, 2, 4)}  # fmt: skip
    return Grid(*sizes[ranks], steps=steps)


@dataclass
class Job:
    """A simulated job: `arrivals` and `groups` as `stepscope.analysis.blame.matched` takes them."""

    grid: Grid
    problem: Problem | None
    arrivals: pl.DataFrame
    groups: pl.DataFrame
    step_ns: float
    offset_ns: np.ndarray  # of each rank, in the middle of the recording
    drift: np.ndarray
    true_end_ns: np.ndarray  # of each row of `arrivals`

    @property
    def met(self) -> pl.DataFrame:
        """The arrivals, as `stepscope.analysis.ranks.clocks` takes them."""
        return self.arrivals.with_columns(key=pl.struct("group", "number").rank("dense"))

    def clock_error_ns(self, rank: int, reference: int, true_ns: float, said_ns: float) -> float:
        """How far a stated difference of two clocks is from the planted one, at a moment."""
        middle = (self.true_end_ns.min() + self.true_end_ns.max()) / 2
        apart = self.offset_ns[rank] - self.offset_ns[reference]
        apart += (self.drift[rank] - self.drift[reference]) * (true_ns - middle)
        return abs(said_ns - apart)


def simulate(
    grid: Grid,
    seed: int,
    problem: Problem | None = None,
    *,
    offset_ms: float = 50.0,
    drift_ppm: float = 50.0,
    noise: float = 0.03,
    skew_ns: float = 3_000.0,
) -> Job:
    """Runs a job. The same seed with and without a problem has the same noise."""
    run = _Run(grid, seed, problem, noise, skew_ns)
    for step in range(grid.steps):
        run.step(step)
    return run.finished(offset_ms, drift_ppm)


def random_problem(grid: Grid, seed: int, kinds: Sequence[str] = PROBLEMS) -> Problem:
    """A problem of the kind, place and size that a seed gives."""
    dice = np.random.default_rng(seed + 1_000_003)
    kind = kinds[seed % len(kinds)]
    share = {LATE_START: dice.uniform(1, 4), SLOW_LINK: dice.uniform(3, 8)}.get(
        kind, dice.uniform(0.08, 0.4)
    )
    return Problem(kind, int(dice.integers(grid.ranks)), float(share))


class _Run:
    def __init__(
        self, grid: Grid, seed: int, problem: Problem | None, noise: float, skew_ns: float
    ) -> None:
        self.grid = grid
        self.problem = problem
        self.dice = np.random.default_rng(seed)
        self.other_dice = np.random.default_rng(seed + 77)  # for what only a problem needs
        self.noise = noise
        self.skew_ns = skew_ns
        self.shape = grid.shape
        self.number = np.arange(grid.ranks).reshape(self.shape)
        self.bad = np.zeros(self.shape, np.bool_)
        if problem is not None:
            self.bad[np.unravel_index(problem.rank, self.shape)] = True
        self.now = self.dice.uniform(0, 3 * MILLISECOND, self.shape)
        self.local = {cause: np.zeros(self.shape) for cause in CAUSES}
        self.groups: list[dict[str, object]] = []
        self.group_of = {name: self._dimension(axis, name) for axis, name in enumerate(DIMENSIONS)}
        self.world = self._group("world", "world", self.number)
        self.pairs = [self._pair(stage) for stage in range(grid.pipeline - 1)]
        self.lag = {}  # of each dimension: how much later than the others a rank always leaves
        self.counts: dict[str, int] = {}
        self.columns: list[dict[str, np.ndarray]] = []
        self.healthy_step_ns = grid.micro_batches * 2 * (grid.pipeline + 1) * 8.5 * MILLISECOND

    # Groups

    def _group(self, name: str, dimension: str, ranks: np.ndarray) -> int:
        members = sorted(int(rank) for rank in ranks.reshape(-1))
        self.groups.append(
            {"group": len(self.groups), "name": name, "dimension": dimension, "ranks": members}
        )
        return len(self.groups) - 1

    def _dimension(self, axis: int, name: str) -> np.ndarray:
        """Of each rank, the group of this dimension that it is in."""
        found = np.zeros(self.shape, np.int64)
        lines = np.moveaxis(self.number, axis, -1).reshape(-1, self.shape[axis])
        for place, line in enumerate(lines):
            found.reshape(-1)[line] = self._group(f"{name}_{place}", name, line)
        return found

    def _pair(self, stage: int) -> np.ndarray:
        """Of each rank of two neighbouring stages, the pair of it and its peer."""
        found = np.zeros((2, *self.shape[1:]), np.int64)
        both = self.number[stage : stage + 2]
        for index in np.ndindex(self.shape[1:]):
            pair = both[(slice(None), *index)]
            found[(slice(None), *index)] = self._group(
                f"pipe_{pair[0]}_{pair[1]}", "pipeline", pair
            )
        return found

    # Time

    def step(self, step: int) -> None:
        self.at_step = step
        grid, problem = self.grid, self.problem
        if problem is not None and problem.kind == LATE_START and step == 0:
            self.now[self.bad] += problem.share * self.healthy_step_ns
        self.now += grid.between_steps_ns
        self._spend("input", 1.0 * MILLISECOND)
        self._burden("input", step)
        pause_at = (-1, -1)
        collects = problem is not None and problem.kind == "garbage_collection"
        if collects and (self.other_dice.random() < 0.6 or step == 0):
            micro_batch = int(self.other_dice.integers(grid.micro_batches))
            pause_at = (int(self.other_dice.integers(2)), micro_batch)
        for way in (0, 1):
            stages = range(grid.pipeline) if way == 0 else range(grid.pipeline - 1, -1, -1)
            for micro_batch in range(grid.micro_batches):
                if pause_at == (way, micro_batch):
                    self._burden("garbage_collection", step, 1 / 0.6)
                for stage in stages:
                    before = stage - 1 if way == 0 else stage + 1
                    if 0 <= before < grid.pipeline:
                        lower = min(stage, before)
                        self._meet(
                            slice(lower, lower + 2), 0, self.pairs[lower], "send_recv", 300_000
                        )
                    self._work(slice(stage, stage + 1), way)
        everyone = slice(None)
        self._spend("host", 0.5 * MILLISECOND)
        self._meet(everyone, 1, self.group_of["data"], "reduce_scatter", 6 * MILLISECOND)
        self._spend("compute", 3 * MILLISECOND)
        self._meet(everyone, None, np.full(self.shape, self.world), "all_reduce", 80_000)

    def _work(self, stage: slice, way: int) -> None:
        compute = (4 if way == 0 else 8) * MILLISECOND
        self._spend("compute", compute, stage)
        self._spend("host", 0.3 * MILLISECOND, stage)
        self._burden("compute", self.at_step, 1 / (2 * self.grid.micro_batches), stage)
        self._burden("host", self.at_step, 1 / (2 * self.grid.micro_batches), stage)
        for name, kind, transfer in (
            ("context", "all_gather", 500_000),
            ("tensor", "all_reduce", 250_000),
            ("expert", "all_to_all", 700_000),
        ):
            axis = DIMENSIONS.index(name)
            if self.shape[axis] > 1:
                self._meet(stage, axis, self.group_of[name][stage], kind, transfer)
                self._spend("compute", 0.4 * MILLISECOND, stage)

    def _spend(self, cause: str, usual_ns: float, stage: slice = slice(None)) -> None:
        shape = self.now[stage].shape
        self.local[cause][stage] += usual_ns * self.dice.lognormal(0, self.noise, shape)

    def _burden(self, kind: str, step: int, part: float = 1.0, stage: slice = slice(None)) -> None:
        """The planted problem's part of this moment."""
        if self.problem is None or self.problem.kind != kind:
            return
        extra = self.problem.share * self.healthy_step_ns * part
        self.local[kind][stage][self.bad[stage]] += extra * self.other_dice.uniform(0.9, 1.1)

    def _meet(
        self, stage: slice, axis: int | None, group: np.ndarray, kind: str, usual_ns: float
    ) -> None:
        """All ranks of some stages meet in their groups."""
        local = {cause: values[stage] for cause, values in self.local.items()}
        start = self.now[stage] + sum(local.values())
        latest = np.broadcast_to(start.max(axis=axis, keepdims=True), start.shape)
        one_each = np.broadcast_to(
            self.dice.lognormal(0, 2 * self.noise, start.shape), start.shape
        ).max(axis=axis, keepdims=True)
        transfer = usual_ns * np.broadcast_to(one_each, start.shape)
        problem = self.problem
        if problem is not None and problem.kind == SLOW_LINK and axis not in {None, 4}:
            slow = self.bad[stage].any(axis=axis, keepdims=True)
            transfer = np.where(slow, transfer * problem.share, transfer)
        key = f"{kind} {axis}"
        if key not in self.lag:
            self.lag[key] = self.dice.uniform(0, self.skew_ns, self.shape)
        skew = self.lag[key][stage] + self.dice.exponential(self.skew_ns, start.shape)
        end = latest + transfer + skew
        count = self.counts.get(f"{kind} {axis} {stage}", 0)
        self.counts[f"{kind} {axis} {stage}"] = count + 1
        self.columns.append(
            {
                "rank": self.number[stage].reshape(-1),
                "group": group.reshape(-1),
                "number": np.full(start.size, count),
                "kind": np.full(start.size, kind),
                "step": np.full(start.size, self.at_step),
                "message_bytes": np.full(start.size, round(usual_ns * 20)),
                "start": start.reshape(-1),
                "end": end.reshape(-1),
                **{
                    f"local_{cause}_ns": np.rint(values).astype(np.int64).reshape(-1)
                    for cause, values in local.items()
                },
            }
        )
        for values in self.local.values():
            values[stage] = 0
        self.now[stage] = end

    def finished(self, offset_ms: float, drift_ppm: float) -> Job:
        names = list(self.columns[0])
        table = {name: np.concatenate([part[name] for part in self.columns]) for name in names}
        start, end = table.pop("start"), table.pop("end")
        middle = (end.min() + end.max()) / 2
        ranks = self.grid.ranks
        offset = self.dice.uniform(-offset_ms, offset_ms, ranks) * MILLISECOND
        drift = self.dice.uniform(-drift_ppm, drift_ppm, ranks) * 1e-6
        own = [
            np.rint(times + offset[table["rank"]] + drift[table["rank"]] * (times - middle))
            for times in (start, end)
        ]
        arrivals = pl.DataFrame(
            {
                **table,
                "start_ns": own[0].astype(np.int64) + EPOCH_NS,
                "end_ns": own[1].astype(np.int64) + EPOCH_NS,
            }
        )
        return Job(
            self.grid,
            self.problem,
            arrivals,
            pl.DataFrame(self.groups),
            float((end.max() - end.min()) / self.grid.steps),
            offset,
            drift,
            end,
        )
