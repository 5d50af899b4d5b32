"""Jobs of many ranks that meet in every step, healthy or with one thing wrong.

    job = random_job(seed=7, plant="input")
    times = simulate_job(job)
    write_job_run(times, folder)              # step records, and a window of each rank
    saving_ns = times.step_ns - simulate_job(job.healed).step_ns

Columns over ranks, so that a thousand jobs take minutes. A step is

    batch, [pause], forward, backward in pieces, each of which ends with a collective, optimizer

Ranks work at their own pace, which wanders from step to step and is now and then interrupted. They
meet in the collectives alone, which begin on a rank when its piece and its collective before are
done, and end on all when the last rank has come and the transfer is done. On a CPU the training
thread works and waits at the end of backward. With a GPU it launches, and reads the loss at the end
of the step; the optimizer's kernel waits for the collectives.

The same seed has the same noise with and without what is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.float64]
MS = 1e6

PLANTS = ("healthy", "input", "compute", "collector", "imbalance", "nth", "link", "late start")
KERNELS = 3
"""Launched in forward."""
PER_MACHINE = 8
_RANKS = (2, 2, 3, 3, 4, 4, 4, 4, 8, 8, 8, 8, 16, 16, 32, 32, 24, 64)
"""Large jobs are rarer: a rank takes a fifth of a second to judge."""


@dataclass(frozen=True)
class Plant:
    """What is wrong.

    Attributes:
        kind: One of `PLANTS`.
        ranks: Where; of an imbalance all ranks.
        share: How much of a healthy step it takes; of a link, by what factor its transfers take
            longer; of an imbalance, how far lengths lie from their mean.
        every: In every so many steps only.
    """

    kind: str = "healthy"
    ranks: tuple[int, ...] = ()
    share: float = 0.0
    every: int = 1


@dataclass(frozen=True)
class ManyRanks:
    """A job.

    Attributes:
        ranks: How many.
        on_gpu: Whether they compute on GPUs.
        plant: What is wrong.
        pieces: Collectives of all ranks in a step.
        group: Ranks of a smaller group, which meets once in forward and once in backward; 0: none.
        steps: How many are run.
        first: The first recorded one.
        active: How many are recorded.
        has_record: Whether there are step records.
        wander: By how much the pace of a rank differs from step to step.
        memory: How much of that is still there a step later.
        interrupted: How often a rank's step is interrupted.
        is_loaded: Whether other work takes the CPUs away from it at times.
        has_free_transfers: Whether collectives take no longer than their members are apart.
        seed: For all that is random.
    """

    ranks: int
    on_gpu: bool = True
    plant: Plant = field(default_factory=Plant)
    pieces: int = 3
    group: int = 0
    steps: int = 60
    first: int = 8
    active: int = 3
    has_record: bool = True
    wander: float = 0.02
    memory: float = 0.5
    interrupted: float = 0.01
    is_loaded: bool = False
    has_free_transfers: bool = False
    seed: int = 0

    @property
    def healed(self) -> ManyRanks:
        """The same without what is wrong; of an imbalance, with lengths sorted into batches."""
        kind = "bucketed" if self.plant.kind == "imbalance" else "healthy"
        return replace(self, plant=replace(self.plant, kind=kind))


@dataclass
class JobTimes:
    """When each rank did what: arrays of step × rank, of pieces step × piece × rank."""

    job: ManyRanks
    clock_ns: Times  # of each rank, what its clock reads too much
    drift: Times
    cpu_ns: Times  # what the training thread runs on a CPU
    queued_ns: Times  # what it waits for one
    start: Times
    batch_end: Times
    pause_end: Times
    forward_end: Times  # host
    backward_end: Times  # host
    end: Times  # host
    launched: Times  # of each kernel, in order; GPU only
    work_start: Times  # of each piece of work: kernels of forward, of backward, optimizer
    work_end: Times
    met_start: Times  # of each collective of all ranks
    met_end: Times
    group_start: Times  # of each of the smaller groups
    group_end: Times

    @property
    def step_ns(self) -> float:
        """The mean step once the first ones are over."""
        ends = self.end.max(axis=1)
        return float((ends[-1] - ends[5]) / (len(ends) - 6))


def simulate_job(job: ManyRanks) -> JobTimes:
    """Run a job."""
    run = _Run(job)
    for step in range(job.steps):
        run.step(step)
    return run.times


class _Run:
    """A job that is running: what it draws at random, and how far its ranks are."""

    def __init__(self, job: ManyRanks) -> None:
        dice = np.random.default_rng(job.seed)
        steps, count, pieces = job.steps, job.ranks, job.pieces
        scale = dice.choice((6.0, 15.0, 40.0, 120.0)) * MS
        self.job = job
        self.batch_ns = scale * dice.uniform(0.005, 0.05)
        self.forward_ns = scale * dice.uniform(0.25, 0.35)
        self.piece_ns = scale * dice.uniform(0.4, 0.6) / pieces
        self.optimizer_ns = scale * dice.uniform(0.03, 0.08)
        transfer_ns = scale * dice.uniform(0.02, 0.15) / pieces
        self.launch_ns = scale * dice.uniform(0.005, 0.03)
        healthy_ns = self.batch_ns + self.forward_ns + self.optimizer_ns
        healthy_ns += pieces * (self.piece_ns + 0.3 * transfer_ns)
        wandering = _wandering(dice, job)
        self.parts = dice.lognormal(0, 0.3 * job.wander, (steps, pieces + 3, count))
        hit = dice.random((steps, count)) < job.interrupted
        self.interruption = np.where(hit, dice.exponential(0.5 * healthy_ns, (steps, count)), 0.0)
        self.hit_at = dice.integers(0, 3, (steps, count))
        self.transfers = transfer_ns * dice.lognormal(0, 0.05, (steps, pieces + 2, 1))
        self.transfers *= not job.has_free_transfers
        self.host = dice.uniform(0, 0.2 * healthy_ns, count)
        self.device = np.zeros(count)  # the compute stream is busy until then
        self.comm = np.zeros(count)
        # Ranks of a machine share its clock.
        machine = np.arange(count) // PER_MACHINE
        clock_ns = (dice.uniform(-50, 50, count) * MS)[machine]
        drift = (dice.uniform(-20, 20, count) * 1e-6)[machine]
        self._plant(dice, healthy_ns)
        # On a busy machine ranks take longer, and use no more of a CPU; never more than they take.
        self.pace = wandering * self.lengths * self.slower
        own = np.minimum(self.pace, self.lengths * self.slower) if job.is_loaded else self.pace
        shape, of_pieces = (steps, count), (steps, pieces, count)
        self.works = works = KERNELS + pieces + 1
        cpu_ns = (self.forward_ns + pieces * self.piece_ns) * own + self.optimizer_ns
        if job.plant.kind == "collector":
            cpu_ns = cpu_ns + self.extra
        queued_ns = (self.forward_ns + pieces * self.piece_ns) * np.maximum(self.pace - own, 0)
        hosts = [np.zeros(shape) for _ in range(6)]
        devices = [np.zeros((steps, works + pieces + 2, count))]
        devices += [np.zeros((steps, works, count)) for _ in range(2)]
        meetings = [np.zeros(of_pieces) for _ in range(2)]
        meetings += [np.zeros((steps, 2, count)) for _ in range(2)]
        columns: list[Times] = [clock_ns, drift, cpu_ns, queued_ns, *hosts, *devices, *meetings]
        names = [one.name for one in fields(JobTimes)][1:]
        self.times = JobTimes(job, **dict(zip(names, columns, strict=True)))

    def _plant(self, dice: np.random.Generator, healthy_ns: float) -> None:
        job, plant = self.job, self.job.plant
        shape = (job.steps, job.ranks)
        self.lengths = np.ones(shape)
        if plant.kind in ("imbalance", "bucketed"):
            self.lengths = np.maximum(0.1, dice.lognormal(0, plant.share, shape))
            if plant.kind == "bucketed":
                self.lengths[:] = self.lengths.mean(axis=1, keepdims=True)
        is_bad = np.isin(np.arange(job.ranks), plant.ranks)
        due = np.arange(job.steps) % plant.every == plant.every - 1
        amount = plant.share * healthy_ns * dice.uniform(0.9, 1.1, shape)
        self.extra = np.where(due[:, None] & is_bad, amount, 0.0)
        if plant.kind == "late start":
            self.extra[:] = 0
            self.extra[job.first, is_bad] = plant.share * healthy_ns
        is_slow = is_bad & (plant.kind == "compute")
        self.slower = np.where(is_slow, 1 + plant.share, 1.0) * np.ones(shape)
        self.is_slow_link = is_bad & (plant.kind == "link")

    def step(self, s: int) -> None:
        """All ranks do a step, up to the end of it on the host."""
        job, t = self.job, self.times
        t.start[s] = self.host
        batch = self.batch_ns * self.parts[s, job.pieces + 2]
        if job.plant.kind == "input":
            batch = batch + self.extra[s]
        self.host = self.host + batch
        self._interrupt(s, 0)
        t.batch_end[s] = self.host
        if job.plant.kind in ("collector", "nth", "late start"):
            self.host = self.host + self.extra[s]
        t.pause_end[s] = self.host
        for kernel in range(KERNELS):
            self._work(s, kernel, self.forward_ns / KERNELS * self.pace[s] * self.parts[s, 0])
        if not job.on_gpu:
            self._interrupt(s, 1)
        self._meet_in_groups(s, 0, KERNELS - 1)
        t.forward_end[s] = self.host
        for piece in range(job.pieces):
            place = KERNELS + piece
            self._work(s, place, self.piece_ns * self.pace[s] * self.parts[s, 1 + piece])
            if piece == 0:
                if not job.on_gpu:
                    self._interrupt(s, 2)
                self._meet_in_groups(s, 1, place)
            self._meet(s, piece, place)
        if job.on_gpu:
            self.device = np.maximum(self.device, self.comm)
        else:
            self.host = np.maximum(self.host, self.comm)
        t.backward_end[s] = self.host
        self._work(s, self.works - 1, self.optimizer_ns * self.parts[s, job.pieces + 1])
        if job.on_gpu:
            self.host = np.maximum(self.host, self.device) + 8000
        t.end[s] = self.host
        self.host = self.host + 20_000

    def _interrupt(self, s: int, at: int) -> None:
        self.host = self.host + np.where(self.hit_at[s] == at, self.interruption[s], 0)

    def _launch(self, s: int, place: int) -> Times:
        """When what is launched now can begin."""
        self.host = self.host + self.launch_ns
        self.times.launched[s, place] = self.host
        return self.host + 5000

    def _work(self, s: int, place: int, ns: Times) -> None:
        """The next piece of work, on the device or the training thread."""
        t = self.times
        if self.job.on_gpu:
            t.work_start[s, place] = np.maximum(self.device, self._launch(s, place))
            self.device = t.work_end[s, place] = t.work_start[s, place] + ns
        else:
            t.work_start[s, place] = self.host
            self.host = t.work_end[s, place] = self.host + ns

    def _arrive(self, s: int, launch: int, after: int) -> Times:
        """When ranks come to a collective that needs a piece of work, and follows others."""
        begin: Times = np.maximum(self.times.work_end[s, after], self.comm)
        return np.maximum(begin, self._launch(s, launch)) if self.job.on_gpu else begin

    def _meet(self, s: int, piece: int, after: int) -> None:
        begin = self._arrive(s, self.works + piece, after)
        self.times.met_start[s, piece] = begin
        self.comm = np.full(self.job.ranks, begin.max() + self.transfers[s, piece, 0])
        self.times.met_end[s, piece] = self.comm

    def _meet_in_groups(self, s: int, which: int, after: int) -> None:
        group = self.job.group
        if not group:
            return
        begin = self._arrive(s, self.works + self.job.pieces + which, after)
        latest = begin.reshape(-1, group).max(axis=1).repeat(group)
        longer = np.where(self.is_slow_link, self.job.plant.share, 1.0)
        self.comm = latest + self.transfers[s, self.job.pieces + which] * longer
        self.times.group_start[s, which] = begin
        self.times.group_end[s, which] = self.comm
        if self.job.on_gpu:
            self.device = np.maximum(self.device, self.comm)
        else:
            self.host = self.comm


def _wandering(dice: np.random.Generator, job: ManyRanks) -> Times:
    """The pace of each rank in each step, with a memory of the steps before."""
    shocks = dice.normal(0, job.wander, (job.steps, job.ranks))
    pace = np.zeros_like(shocks)
    for step in range(job.steps):
        before = pace[step - 1] if step else shocks[0] / max(1e-9, np.sqrt(1 - job.memory**2))
        pace[step] = job.memory * before + np.sqrt(1 - job.memory**2) * shocks[step]
    found: Times = np.exp(pace)
    return found


def random_job(seed: int, plant: str, most_ranks: int = 64, *, fixed: bool = False) -> ManyRanks:
    """A job of 2 to 64 ranks that is healthy or loses a notable part of a step by one thing.

    Args:
        seed: For all that is random.
        plant: What is wrong.
        most_ranks: How many ranks there are at most.
        fixed: Whether there are just as many.
    """
    dice = np.random.default_rng(seed)
    ranks = min(most_ranks, int(dice.choice(_RANKS)))
    ranks = most_ranks if fixed else ranks
    if plant == "link":
        ranks = max(8, ranks)
    if plant not in ("healthy", "imbalance"):
        ranks = max(3, ranks)  # of two, no one knows which is as it should be
    on_gpu = plant == "link" or dice.random() < 0.6
    group = int(dice.choice((2, 4))) if ranks >= 8 and on_gpu and dice.random() < 0.5 else 0
    if plant == "link":
        group = 4 if ranks < 16 else int(dice.choice((2, 4)))
    bad = int(dice.integers(ranks))
    who: tuple[int, ...] = (bad,)
    if plant == "link":
        first = bad // group * group
        who = tuple(range(first, first + group))
    share = float(dice.uniform(0.12, 0.4))
    every = 1
    if plant == "collector":
        every = int(dice.choice((1, 1, 2)))
    if plant == "nth":
        every, share = int(dice.choice((4, 5, 8))), float(dice.uniform(0.6, 1.5))
    if plant == "imbalance":
        share = float(dice.uniform(0.25, 0.5))
    if plant == "link":
        share = float(dice.uniform(10, 20))
    if plant == "late start":
        share = float(dice.uniform(1.5, 4))
    is_loaded = not on_gpu and dice.random() < 0.3
    active = int(dice.choice((3, 3, 5)))
    pieces, first = int(dice.choice((1, 2, 3))), int(dice.choice((8, 12)))
    has_record = bool(dice.random() < 0.7) or plant == "nth"
    if plant == "imbalance" and not on_gpu:
        has_record = True  # only a record has the time on the CPU, which tells work from pauses
    if not has_record:
        active = max(active, 3 * every)
    return ManyRanks(
        ranks,
        on_gpu,
        Plant(plant, who if plant != "healthy" else (), share, every),
        pieces=pieces,
        group=group,
        first=first,
        active=active,
        has_record=has_record,
        wander=0.25 if is_loaded else float(dice.choice((0.005, 0.02, 0.04))),
        memory=float(dice.choice((0.0, 0.5, 0.8))),
        interrupted=0.1 if is_loaded else float(dice.choice((0.0, 0.01, 0.02))),
        is_loaded=is_loaded,
        seed=seed,
    )
