"""Which rank sets the pace, and in which stage of the step, from step records alone.

The idea is that of StageFrontier (arXiv 2606.06751); no clocks are compared.

Definitions
    Stages of a step, in order: the wait for the batch, the outermost phases in the order in which
    they occur, and the rest of the step.
    All ranks begin a step together, since they waited for each other in the one before. Frontier of
    a stage: the greatest time of any rank from the start of the step to the end of the stage. Its
    increments from stage to stage add up exactly to the longest step of any rank.
    Lead of the rank at the frontier: by how much its stage takes longer than the median of the
    other ranks', but not more than it is ahead of their median in all. So a rank that waits for
    others in a stage, and comes out of it with them, does not lead.
    Where the ranks wait inside the stage that is slow on one of them (a backward that exchanges
    gradients), the records of all look alike, and no lead shows.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.run.figures import duration, percent
from stepscope.run.step_record import StepRecord, input_wait, is_input_phase
from stepscope.skew.rank_skew import RankSteps, steps_in_common, wait_by_design

INPUT, REST = "input", "the rest of the step"
_LEAST_STEPS = 5
_NOTABLE_SHARE = 0.05
_MOSTLY = 0.5


@dataclass(frozen=True)
class FrontierRank:
    """One rank.

    Attributes:
        rank: The rank.
        lead_ns: By how much it leads, per step.
        stage: The stage in which it leads most.
        steps: In how many steps it leads at all.
    """

    rank: int
    lead_ns: int
    stage: str
    steps: int


@dataclass(frozen=True)
class Frontier:
    """The frontier of the ranks' stages.

    Attributes:
        steps: Number of steps that were compared.
        total_ns: Sum over the steps of the longest step of any rank.
        stages: Each stage with its increments, summed over the steps; they add up to `total_ns`.
        ranks: Every rank, the greatest lead first.
    """

    steps: int
    total_ns: int
    stages: tuple[tuple[str, int], ...]
    ranks: tuple[FrontierRank, ...]

    @property
    def step_ns(self) -> int:
        """Mean of the longest steps."""
        return round(self.total_ns / self.steps)

    @property
    def leader(self) -> FrontierRank | None:
        """The rank that sets the pace; None where none does.

        It leads by a twentieth of the step or more, and in more than half of the steps.
        """
        first = self.ranks[0]
        leads = first.lead_ns >= _NOTABLE_SHARE * self.step_ns
        return first if leads and first.steps > _MOSTLY * self.steps else None

    def sentence(self) -> str:
        """Who sets the pace and where; empty where nobody does."""
        leader = self.leader
        if leader is None:
            return ""
        return (
            f"rank {leader.rank} sets the pace: it takes {duration(leader.lead_ns)} longer than "
            f"the others in each step, {percent(leader.lead_ns / self.step_ns)} of it, mostly in "
            f"{leader.stage}"
        )


def find_frontier(ranks: Sequence[RankSteps]) -> Frontier | None:
    """Find out which rank sets the pace.

    Compared are the same steps as for `rank_skew`. Steps whose phases overlap are left out.

    Returns:
        The frontier; None with one rank, with fewer than five steps in common, and for the stages
        of a pipeline, which do different work.
    """
    if len(ranks) < 2 or wait_by_design(ranks):
        return None
    rows = steps_in_common(ranks)
    on_device = any(record.device_ns is not None for row in rows for record in row)
    names = _stage_names([record for row in rows for record in row], on_device)
    found = [[_stages(record, names, on_device) for record in row] for row in rows]
    steps = [[stage for stage in row if stage is not None] for row in found]
    steps = [row for row in steps if len(row) == len(ranks)]
    if len(steps) < _LEAST_STEPS:
        return None
    sums = _Sums(len(ranks), len(names))
    for row in steps:
        sums.add(row)
    leading = [
        FrontierRank(
            rank.rank,
            round(sum(lead_ns) / len(steps)),
            names[lead_ns.index(max(lead_ns))],
            led_steps,
        )
        for rank, lead_ns, led_steps in zip(ranks, sums.lead_ns, sums.led_steps, strict=True)
    ]
    return Frontier(
        len(steps),
        sum(sums.frontier_ns),
        tuple(zip(names, sums.frontier_ns, strict=True)),
        tuple(sorted(leading, key=lambda one: (-one.lead_ns, one.rank))),
    )


class _Sums:
    """What the steps add up to.

    Attributes:
        frontier_ns: By stage, how far it moves the frontier: the most that any rank has taken from
            the start of the step to the end of the stage.
        lead_ns: By rank and stage, how far the rank is beyond the median of the others where it
            sets the frontier.
        led_steps: By rank, in how many steps it was notably ahead at the end of a stage.
    """

    def __init__(self, ranks: int, stages: int) -> None:
        self.frontier_ns = [0] * stages
        self.lead_ns = [[0] * stages for _ in range(ranks)]
        self.led_steps = [0] * ranks

    def add(self, step: Sequence[Sequence[int]]) -> None:
        """Add a step: by rank, the duration of each stage."""
        notable_ns = _NOTABLE_SHARE / 5 * max(map(sum, step))
        led = set()
        elapsed = [0] * len(step)
        before = 0
        for stage, durations in enumerate(zip(*step, strict=True)):
            elapsed = [so_far + own for so_far, own in zip(elapsed, durations, strict=True)]
            frontier = max(elapsed)
            self.frontier_ns[stage] += frontier - before
            before = frontier
            first = elapsed.index(frontier)
            lead_ns = min(_beyond(elapsed, first), _beyond(durations, first))
            self.lead_ns[first][stage] += max(0, lead_ns)
            if lead_ns > notable_ns:
                led.add(first)
        for rank in led:
            self.led_steps[rank] += 1


def _beyond(values: Sequence[int], place: int) -> int:
    """How far one value is beyond the median of the others."""
    others = [value for at, value in enumerate(values) if at != place]
    return values[place] - round(statistics.median(others))


def _stage_names(records: Sequence[StepRecord], on_device: bool) -> list[str]:
    names: dict[str, None] = {} if on_device else {INPUT: None}
    for record in records:
        for name in record.device_phases if on_device else record.phases:
            if "/" not in name and (on_device or not is_input_phase(name)):
                names[name] = None
    return [*names, REST]


def _stages(record: StepRecord, names: Sequence[str], on_device: bool) -> list[int] | None:
    """The duration of each stage; None where they do not fit into the step."""
    if on_device and record.device_ns is None:
        return None
    phases = record.device_phases if on_device else record.phases
    whole = record.device_ns if on_device and record.device_ns is not None else record.dur_ns
    own = [
        input_wait(record) if name == INPUT and not on_device else phases.get(name, 0)
        for name in names[:-1]
    ]
    rest = whole - sum(own)
    return [*own, rest] if rest >= 0 else None
