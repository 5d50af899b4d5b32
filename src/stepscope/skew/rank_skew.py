"""Detects which rank arrives late, from the step records of all ranks alone.

Ranks that train together meet in every step: none continues before the last has arrived. The rank
that arrives last waits least, and what the others wait beyond that is what it costs them. Steps
vary, so means over all compared steps are used, of each rank's distance to the middle one, without
the longest and the shortest, because one long pause would decide.
Somebody always comes last: ranks are late only beyond what equal ranks are by chance
(`skew.equal_ranks`).

A rank's position comes from one of these, depending on what the records have:

* *communication*: the time in phases of this name, where the ranks wait for each other; those of
  `auto_phases` and `stepscope run`, or the loop's own. Assumes that all ranks exchange the same.
* *backward*: the time in the phase `backward`, in which DistributedDataParallel waits. Assumes
  that backward is the same work on all ranks. Where windows show how much of that work a device
  has per forward (`backward_work`), backward is as much longer on a rank as its forward is.
* *time off the CPU*: how long the training thread neither runs, nor is ready to run, nor waits for
  input: where it meets other ranks, it waits for them. Outside the phase in which the ranks wait,
  what is longer than usual in a step, for the time that the thread ran, is a pause before they
  meet; so is what is longer beside all phases, unless the thread ran as much longer. Assumes that
  whatever else ranks wait for (disks, locks), they wait for alike. It sees all work of a rank, in
  whatever phase, which the others do not: the phase `backward` is longer on a rank with more to
  compute.
* *step borders*: when the rank has its batch: the step's start on rank 0's clock plus the wait for
  input. Assumes that the ranks meet later in the step; a rank that falls behind after its batch
  arrived is not detected. Clocks were compared at the start, and the error of the waits is at most
  the sum of the two largest error bounds.

A rank that comes late in every Nth step only, because it saves or logs then, is seldom last. So
where the steps in which ranks come apart lie at one distance beyond chance (`skew.course`), the
ranks are compared in these steps, and what they cost is spread over all.

Where the record has most of what the ranks are late by, a wait for input or the garbage collector,
the saving is what each step is shorter by with no more of it than the other ranks have. It comes
from the time off the CPU where that is known, which sees what else the ranks do. In a step in which
even the last rank waits longer than it usually does, another one paused unseen where they meet:
nothing is saved there.

On a GPU, the host does not wait and runs ahead, so only the phases' times on the device count; the
host's times and the step borders say nothing there. If there are several bases, the one with the
longest wait counts, because in a step the ranks wait where they meet first.
"""

from __future__ import annotations

import bisect
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from stepscope.errors import UnreadableInputError
from stepscope.run.figures import duration, percent, rank_names
from stepscope.run.layout import RunLayout
from stepscope.run.manifest import ClockSample, RankManifest, read_rank
from stepscope.run.step_record import (
    BACKWARD,
    COMMUNICATION,
    FORWARD,
    OPTIMIZER,
    TRAIN,
    StepRecord,
    input_wait,
    is_input_phase,
    read_last_steps,
)
from stepscope.skew import equal_ranks
from stepscope.skew.course import (
    Course,
    EveryNth,
    FromOneStep,
    Rising,
    course_of,
    every_nth,
)
from stepscope.skew.rank_causes import cause_clause

STEP_BORDERS = "step borders"
OFF_CPU = "time off the CPU"
ARRIVALS = "arrivals at collectives"
"""Found in the traces of all ranks, not in their records."""
RECORDED_WAITS = "communication in the recorded steps"
"""Likewise, from how long each training thread waits in collectives."""

_FIRST_STEPS = 5
"""The first steps are slow in every run, but not equally slow."""
_LEAST_STEPS = 10
_MOST_STEPS = 2000
_ALIKE = 1.25
_NOTABLE_SHARE = 0.05
_MOSTLY = 0.5
_AS_LATE = 0.8
_FAR = 4
"""Median distances from the median."""
_UNSEEN = 0.02
"""Of a step."""
_LITTLE = 0.25
_TWO = 2
_STAGES = frozenset({"pp", "pipe", "pipeline", "stage"})
_READING_S = 2.0


@dataclass(frozen=True)
class RankSteps:
    """The steps of one rank, and what is known about its clock.

    Attributes:
        clock_offset_ns: What to add to its times for rank 0's clock; None if unknown.
        stage: Its stage in a pipeline; None if there is none or it is unknown.
        exchanges: Whether it sends to single ranks or receives, as the stages of a pipeline do.
        clock_samples: The offset as measured at several moments, oldest first.
    """

    rank: int
    records: Sequence[StepRecord]
    clock_offset_ns: int | None = None
    clock_error_ns: int = 0
    stage: int | None = None
    clock_samples: Sequence[ClockSample] = ()
    exchanges: bool = False

    def offset_at(self, time_ns: int) -> int:
        """What to add to a time of this rank for rank 0's clock, interpolated between samples."""
        samples = self.clock_samples
        index = bisect.bisect(samples, time_ns, key=lambda sample: sample.time_ns)
        if not samples:
            return self.clock_offset_ns or 0
        if index in {0, len(samples)}:
            return samples[max(0, index - 1)].offset_ns
        before, after = samples[index - 1], samples[index]
        part = (time_ns - before.time_ns) / (after.time_ns - before.time_ns)
        return before.offset_ns + round(part * (after.offset_ns - before.offset_ns))


@dataclass(frozen=True)
class RankWait:
    """One rank relative to the others.

    Attributes:
        wait_ns: How long it usually waits in a step for the rank that arrives last.
        last_steps: Number of compared steps in which it arrived last.
    """

    rank: int
    wait_ns: int
    last_steps: int


@dataclass(frozen=True)
class RankSkew:
    """How far apart the ranks of a run arrive where they meet.

    Attributes:
        basis: What it is based on: "communication", "backward", "time off the CPU", "step
            borders", or "arrivals at collectives".
        is_device: Whether phases were measured on the device.
        steps: Number of compared steps.
        step_ns: Their median duration, over all ranks.
        late: The ranks that arrive last: the last one, and those whose distance to it is less than
            half of the median rank's. If some of them are late beyond chance, these alone.
        wait_ns: How long another rank usually waits for them in a step: the median of the others.
            No more than the step.
        saving_ns: How much shorter a step would be if they came as the others do: on average over
            the steps as late, and as much earlier or later from step to step. They may be the last
            ones then, too.
        last_share: Share of the steps in which one of them arrived last; by arrivals at
            collectives, the share of all waiting that was for them, or for ranks that they made
            late.
        error_ns: Bound on the error of the waits due to clocks; 0 if no clocks are compared.
        ranks: Every rank, the latest first.
        course: How what the others wait changes over the steps, where that is beyond chance. If
            they wait in every Nth step only, the waits are means over all steps, and `last_share`
            is a share of these.
        chance: How likely any of equal ranks is to come as late as the late ones
            (`skew.equal_ranks`).
        cause: Why they come late, as a clause, where records or windows tell; else empty.
    """

    basis: str
    is_device: bool
    steps: int
    step_ns: int
    late: tuple[int, ...]
    wait_ns: int
    saving_ns: int
    last_share: float
    error_ns: int
    ranks: tuple[RankWait, ...]
    course: Course | None = None
    chance: float = 0.0
    cause: str = ""

    @property
    def share(self) -> float:
        """The others' wait as a share of the step."""
        return self.wait_ns / self.step_ns if self.step_ns else 0.0

    @property
    def accuses(self) -> bool:
        """Whether the late ranks are to blame: of two, nothing says which is as it should be."""
        return len(self.ranks) != _TWO and self.is_notable

    @property
    def is_notable(self) -> bool:
        """Whether it costs a twentieth of the step, is systematic, and exceeds the clocks' error.

        It is systematic if the late ranks arrive last in more than half of the steps, and equal
        ranks would hardly be as late by chance.
        """
        is_systematic = self.last_share > _MOSTLY and self.chance <= equal_ranks.LIMIT
        is_certain = self.wait_ns > self.error_ns and is_systematic
        return self.share >= _NOTABLE_SHARE and is_certain

    def accusation(self) -> str:
        """Who makes the others wait, why, and what that costs: the same words everywhere."""
        several = len(self.late) > 1
        when = ""
        if isinstance(self.course, EveryNth | FromOneStep):
            when = f" {self.course.text}"
        elif isinstance(self.course, Rising):
            when = f", {self.course.text}"
        why = f": {self.cause}" if self.cause else ""
        share = percent(self.saving_ns / self.step_ns) if self.step_ns else percent(0)
        return (
            f"{rank_names(self.late)} {'make' if several else 'makes'} the others wait{when}"
            f"{why}. Without that a step would take {duration(self.saving_ns)} less, {share} of "
            f"{duration(self.step_ns)}"
        )


def rank_skew(ranks: Sequence[RankSteps], backward_work: float = 0.0) -> RankSkew | None:
    """Find which rank arrives late, and what that costs the others.

    Compares the steps that all ranks have as whole training steps outside windows and not right
    after one: without the first five, and at most 2000, evenly spaced.

    Args:
        backward_work: How long a device works in backward before the ranks meet, per time of its
            forward; 0: not known.

    Returns:
        The skew, notable or not; None with one rank, with fewer than ten steps in common, for the
        stages of a pipeline (`wait_by_design`), or if the records do not show it.
    """
    if len(ranks) < 2 or wait_by_design(ranks):
        return None
    rows = steps_in_common(ranks)
    if len(rows) < _LEAST_STEPS:
        return None
    # Ranks that meet in every step take equally long on average.
    usual = [statistics.fmean(row[i].dur_ns for row in rows) for i in range(len(ranks))]
    if max(usual) > _ALIKE * min(usual):
        return None
    is_device = any(record.device_ns is not None for row in rows for record in row)
    found = [
        _by_phase(ranks, rows, name, backward_work, is_device=is_device)
        for name in (COMMUNICATION, BACKWARD)
    ]
    if not is_device:
        found.append(_by_time_off_cpu(ranks, rows))
        found.append(_by_borders(ranks, rows))
    known = [one for one in found if one is not None]
    worst = max(known, key=lambda one: _weight(one.skew), default=None)
    # Of the same ranks, as late, the time off the CPU sees all work: what is longer in `backward`,
    # too. It takes sleeping and reading for waiting, so that a rank may seem less late by it.
    whole = next((one for one in known if one.skew.basis == OFF_CPU), None)
    if worst is not None and whole is not None and whole.skew.is_notable:
        is_same = set(whole.skew.late) == set(worst.skew.late)
        worst = whole if is_same and whole.skew.wait_ns >= _AS_LATE * worst.skew.wait_ns else worst
    return None if worst is None else _explained(ranks, worst, whole)


@dataclass(frozen=True)
class _Compared:
    """The compared steps, where each rank is in them, and what that comes to."""

    rows: list[list[StepRecord]]
    positions: list[list[int]]
    skew: RankSkew


def _explained(
    ranks: Sequence[RankSteps], compared: _Compared, whole: _Compared | None
) -> RankSkew:
    """Why the late ranks come late, if the records have most of that, and what it costs."""
    skew = compared.skew
    late = [place for place, rank in enumerate(ranks) if rank.rank in skew.late]
    others = [place for place in range(len(ranks)) if place not in late]
    if not others:
        return skew
    part, judged = _judged(compared, skew.course)
    culprits = (
        _without_followers([row for row, _ in judged], late, others, skew.wait_ns / part) or late
    )
    skew = replace(skew, late=tuple(r for r in skew.late if r in {ranks[i].rank for i in culprits}))
    found = []
    for cause, spent in (("input", input_wait), ("garbage_collection", lambda one: one.gc_ns)):
        times = ([spent(record) for record in row] for row in compared.rows)
        usual = [statistics.fmean(column) for column in zip(*times, strict=True)]
        more_ns = min(usual[i] for i in culprits) - statistics.median(usual[i] for i in others)
        found.append((more_ns, cause, spent))
    more_ns, cause, spent = max(found, key=lambda one: one[:2])
    is_recorded = more_ns >= max(1, _MOSTLY * skew.wait_ns)
    if is_recorded:
        skew = replace(skew, cause=cause_clause(cause, several=len(culprits) > 1))
    elif phase := _longer_phase(compared.rows, culprits, others, _MOSTLY * skew.wait_ns / part):
        whose = "their" if len(culprits) > 1 else "its"
        skew = replace(skew, cause=f"{whose} {phase} takes longer")
    # Of ranks that sleep or read, the time off the CPU may not see that they are late.
    is_seen = is_recorded or (
        whole is not None and _wait_ns(whole.positions, late, others) >= _AS_LATE * skew.wait_ns
    )
    if whole is not None and is_seen:
        compared = whole
        part, judged = _judged(whole, skew.course)
    positions = [places for _, places in judged]
    if is_recorded:
        saved = []
        for row, places in judged:
            spent_ns = [spent(record) for record in row]
            for follower in set(late) - set(culprits):  # comes as much earlier without that
                spent_ns[follower] = max(spent_ns[i] for i in culprits)
            saved.append(saved_without(places, spent_ns, late, others))
    elif compared is whole:
        saved = _savings(positions, late, others)
    else:
        return skew
    # A rank that pauses in every Nth step may come last by more than its record shows.
    if compared is whole and (is_recorded or not isinstance(skew.course, EveryNth)):
        saved = [
            0.0 if is_unseen else one_ns
            for one_ns, is_unseen in zip(saved, _unseen_last(positions, skew.step_ns), strict=True)
        ]
    return replace(skew, saving_ns=min(skew.step_ns, max(0, round(part * _usual(saved)))))


def _judged(
    compared: _Compared, course: Course | None
) -> tuple[float, list[tuple[list[StepRecord], list[int]]]]:
    """What part of all steps is long, and these, or all, with where each rank is in them."""
    steps = zip(compared.rows, compared.positions, strict=True)
    if not isinstance(course, EveryNth):
        return 1.0, list(steps)
    part = _part(course, [row[0].step for row in compared.rows])
    return part, [(row, places) for row, places in steps if row[0].step in course.steps]


def _unseen_last(positions: Sequence[Sequence[int]], step_ns: int) -> list[bool]:
    """Of each step, whether even the last rank waits far longer than it usually does."""
    last = [max(row) for row in positions]
    usual = statistics.median(last)
    spread = statistics.median(abs(one - usual) for one in last)
    return [usual - one > max(_FAR * spread, _UNSEEN * step_ns) for one in last]


def _longer_phase(
    rows: Sequence[Sequence[StepRecord]],
    late: Sequence[int],
    others: Sequence[int],
    least_ns: float,
) -> str:
    """The phase that takes longest beyond the others' on all late ranks; empty where none does.

    Those count that every step has, and in which ranks do not wait for each other.
    """
    is_device = rows[0][0].device_ns is not None
    of_all = [[one.device_phases if is_device else one.phases for one in row] for row in rows]
    names = set.intersection(*(set(phases) for row in of_all for phases in row))
    names = {n for n in names if n not in (BACKWARD, COMMUNICATION) and not is_input_phase(n)}
    longer: dict[str, float] = {}
    for name in names:
        usual = [statistics.fmean(row[i][name] for row in of_all) for i in range(len(rows[0]))]
        longer[name] = min(usual[i] for i in late) - statistics.median(usual[i] for i in others)
    worst = max(longer, key=longer.__getitem__, default="")
    return worst if worst and longer[worst] >= max(1, least_ns) else ""


def _without_followers(
    rows: Sequence[Sequence[StepRecord]],
    late: Sequence[int],
    others: Sequence[int],
    wait_ns: float,
) -> list[int]:
    """The late ranks that do not only wait in forward for another late one, as in its group.

    Their forward is no longer than the others', and that of the rest by most of the wait.
    """
    if len(late) < _TWO or any(phase_ns(o.device_phases, FORWARD) is None for r in rows for o in r):
        return []
    times = [[phase_ns(one.device_phases, FORWARD) or 0 for one in row] for row in rows]
    spent = [statistics.median(column) for column in zip(*times, strict=True)]
    usual_ns = statistics.median(spent[j] for j in others)
    longer = {i: spent[i] - usual_ns for i in late}
    first = [i for i in late if longer[i] < _LITTLE * wait_ns]
    rest = [i for i in late if i not in first]
    return first if first and all(longer[i] >= _MOSTLY * wait_ns for i in rest) else []


def saved_without(
    row: Sequence[int], spent_ns: Sequence[int], late: Sequence[int], others: Sequence[int]
) -> float:
    """How much earlier the last rank comes if late ones spend no more on something than others."""
    usual_ns = statistics.median(spent_ns[j] for j in others)
    left = [row[i] - max(0.0, spent_ns[i] - usual_ns) for i in late]
    return max(row) - max(*left, *(row[j] for j in others))


def _part(course: EveryNth, steps: Sequence[int]) -> float:
    """Of all steps, how many are long: of the compared ones, more or fewer may be due."""
    due = [step for step in steps if step % course.every == course.steps[0] % course.every]
    return len(course.steps) / len(due) / course.every


def wait_by_design(ranks: Sequence[RankSteps]) -> bool:
    """Whether the ranks are stages of a pipeline: they differ in work, and wait for each other."""
    return len({rank.stage for rank in ranks} - {None}) > 1 or any(one.exchanges for one in ranks)


def last_ranks(layout: RunLayout, last_steps: int = 200) -> tuple[RankSteps, ...]:
    """The last steps of the ranks of a run that may still be running, from its files.

    Leaves out ranks whose files are not here (on another node without a shared file system) or
    have not been read after two seconds.
    """
    ranks = []
    started = time.monotonic()
    for directory in sorted(layout.root.glob("rank*")):
        rank = layout.rank_of(directory.name)
        if rank is None or time.monotonic() - started > _READING_S:
            continue
        try:
            manifest = read_rank(layout.rank(rank).manifest)
        except UnreadableInputError:
            continue
        records = read_last_steps(layout.rank(rank).steps, last_steps)
        ranks.append((manifest, records))
    return rank_steps(ranks)


def rank_steps(
    ranks: Sequence[tuple[RankManifest, Sequence[StepRecord]]],
) -> tuple[RankSteps, ...]:
    """The ranks' clocks and positions from their manifests, with their steps.

    Processes on one machine share a clock, whether it was compared or not.
    """
    hosts = {manifest.rank: manifest.host for manifest, _ in ranks}
    # The rank that was compared most often represents its machine.
    compared = {
        manifest.host: manifest
        for manifest, _ in sorted(ranks, key=lambda rank: len(rank[0].clock_samples))
        if manifest.clock_offset_ns is not None
    }
    result = []
    for manifest, records in ranks:
        offset_ns: int | None = None
        error_ns = 0
        samples: Sequence[ClockSample] = ()
        if manifest.host and manifest.host == hosts.get(0):
            offset_ns = 0
        elif (known := compared.get(manifest.host)) is not None:
            offset_ns, samples = known.clock_offset_ns, known.clock_samples
            error_ns = max([known.clock_error_ns or 0, *(sample.error_ns for sample in samples)])
        stage = next(
            (at for name, at in manifest.coordinates.items() if name.lower() in _STAGES),
            None,
        )
        exchanges = manifest.exchanges
        result.append(
            RankSteps(manifest.rank, records, offset_ns, error_ns, stage, samples, exchanges)
        )
    return tuple(result)


def _weight(skew: RankSkew) -> tuple[bool, int]:
    return skew.is_notable, skew.wait_ns


def steps_in_common(ranks: Sequence[RankSteps]) -> list[list[StepRecord]]:
    """For each compared step its record on every rank, in the order of the ranks.

    Compared are whole training steps that all ranks have, outside windows and not right after one,
    without the first five, and at most 2000, evenly chosen.
    """
    usual: list[dict[int, StepRecord]] = []
    disturbed: set[int] = set()
    for rank in ranks:
        by_step = {}
        for record in rank.records:
            if record.window is not None:
                disturbed |= {record.step, record.step + 1}
            elif record.kind == TRAIN and not record.is_partial:
                by_step[record.step] = record
        usual.append(by_step)
    common = set(usual[0]).intersection(*usual[1:]) - disturbed
    steps = sorted(step for step in common if step >= _FIRST_STEPS)
    if len(steps) > _MOST_STEPS:
        steps = [steps[index * len(steps) // _MOST_STEPS] for index in range(_MOST_STEPS)]
    return [[by_step[step] for by_step in usual] for step in steps]


def usual_step_ns(ranks: Sequence[RankSteps]) -> int:
    """What a step usually takes that all ranks have; 0 without any.

    Ranks that meet take equally long, but hosts that run ahead of their GPUs may not show it.
    """
    rows = steps_in_common(ranks) if ranks else []
    times = zip(*([one.dur_ns for one in row] for row in rows), strict=True)
    return max((round(_usual(of_rank)) for of_rank in times), default=0)


def _by_phase(
    ranks: Sequence[RankSteps],
    rows: list[list[StepRecord]],
    name: str,
    backward_work: float,
    *,
    is_device: bool,
) -> _Compared | None:
    """From the time in a phase: the rank that spends the least in it arrives last."""

    def position(record: StepRecord) -> int | None:
        phases = record.device_phases if is_device else record.phases
        spent_ns = phase_ns(phases, name)
        if spent_ns is None or not is_device or name != BACKWARD:
            return None if spent_ns is None else -spent_ns
        return round(backward_work * (phase_ns(phases, FORWARD) or 0)) - spent_ns

    positions = [[position(record) for record in row] for row in rows]
    return _compared(ranks, rows, positions, name, is_device=is_device)


def _by_time_off_cpu(ranks: Sequence[RankSteps], rows: list[list[StepRecord]]) -> _Compared | None:
    """From how long each rank's thread waits for others: whoever waits least comes last."""
    if any(record.cpu_ns is None for row in rows for record in row):
        rows = [row for row in rows if all(record.cpu_ns is not None for record in row)]
    columns = [_off_cpu([row[i] for row in rows]) for i in range(len(ranks))] if rows else []
    positions = [list(row) for row in zip(*columns, strict=True)]
    return _compared(ranks, rows, positions, OFF_CPU, is_device=False)


def _off_cpu(records: Sequence[StepRecord]) -> list[int]:
    """Of each step of a rank, how long its thread does not wait for others, less the step."""
    busy = [(one.cpu_ns or 0) + (one.queued_ns or 0) - one.data_wait_cpu_ns for one in records]
    found = [
        busy_ns + input_wait(one) - one.dur_ns for one, busy_ns in zip(records, busy, strict=True)
    ]
    waiting = [
        phase_ns(one.phases, COMMUNICATION) or phase_ns(one.phases, BACKWARD) for one in records
    ]
    outside = [
        one.dur_ns - waited_ns - input_wait(one)
        for one, waited_ns in zip(records, waiting, strict=True)
        if waited_ns
    ]
    if len(outside) < len(records) or min(busy) <= 0:
        return found
    share = statistics.median(o / b for o, b in zip(outside, busy, strict=True))
    more_ns = statistics.median(outside) - statistics.median(busy)
    pauses = [
        max(0.0, outside_ns - max(share * busy_ns, busy_ns + more_ns))
        for outside_ns, busy_ns in zip(outside, busy, strict=True)
    ]
    beside = [_beside_ns(one) for one in records]
    pauses = [
        max(pause_ns, more_ns if busy_more_ns < _MOSTLY * more_ns else more_ns - busy_more_ns)
        for pause_ns, more_ns, busy_more_ns in zip(
            pauses, _beyond_median(beside), _beyond_median(busy), strict=True
        )
    ]
    return [at + round(pause_ns) for at, pause_ns in zip(found, pauses, strict=True)]


def _beside_ns(record: StepRecord) -> int:
    """What a step takes beside its known phases, its input and the collector: saving, say."""
    known = {FORWARD, BACKWARD, COMMUNICATION, OPTIMIZER}
    paths = [(path.split("/"), duration_ns) for path, duration_ns in record.phases.items()]
    inside = sum(ns for names, ns in paths if names[-1] in known and not known & {*names[:-1]})
    return record.dur_ns - inside - input_wait(record) - record.gc_ns


def _beyond_median(times_ns: Sequence[int]) -> list[float]:
    middle = statistics.median(times_ns)
    return [one - middle for one in times_ns]


def phase_ns(phases: dict[str, int], name: str) -> int | None:
    """Time in a phase, nested or not; None without it."""
    found = [duration_ns for path, duration_ns in phases.items() if path.rpartition("/")[2] == name]
    return sum(found) if found else None


def _by_borders(ranks: Sequence[RankSteps], rows: list[list[StepRecord]]) -> _Compared | None:
    """From the moment at which each rank has its batch, on one clock."""
    if any(rank.clock_offset_ns is None for rank in ranks):
        return None
    positions = [
        [
            record.start_ns + rank.offset_at(record.start_ns) + input_wait(record)
            for record, rank in zip(row, ranks, strict=True)
        ]
        for row in rows
    ]
    spread_ns = statistics.median(max(row) - min(row) for row in positions)
    if spread_ns > statistics.median(record.dur_ns for row in rows for record in row):
        return None  # they do not meet in every step, or count their steps differently
    errors = sorted(rank.clock_error_ns for rank in ranks)
    error_ns = errors[-1] + errors[-2]
    return _compared(ranks, rows, positions, STEP_BORDERS, is_device=False, error_ns=error_ns)


def _compared(
    ranks: Sequence[RankSteps],
    rows: list[list[StepRecord]],
    positions: Sequence[Sequence[int | None]],
    basis: str,
    *,
    is_device: bool,
    error_ns: int = 0,
) -> _Compared | None:
    """The ranks by their positions, over the steps in which all of these are known."""
    known_rows, known = [], []
    for row, found in zip(rows, positions, strict=True):
        of_all = [value for value in found if value is not None]
        if len(of_all) == len(row):
            known_rows.append(row)
            known.append(of_all)
    if len(known) < _LEAST_STEPS:
        return None
    skew = skew_of_positions(
        [rank.rank for rank in ranks],
        round(_usual([record.dur_ns for row in known_rows for record in row])),
        known,
        basis,
        [row[0].step for row in known_rows],
        error_ns=error_ns,
        is_device=is_device,
        mean_step_ns=round(statistics.fmean(one.dur_ns for row in known_rows for one in row)),
    )
    return _Compared(known_rows, known, skew)


def skew_of_positions(
    ranks: Sequence[int],
    step_ns: int,
    positions: Sequence[Sequence[int]],
    basis: str,
    steps: Sequence[int],
    *,
    error_ns: int = 0,
    is_device: bool = False,
    mean_step_ns: int = 0,
) -> RankSkew:
    """The ranks by their usual positions; the largest position is the last.

    Where ranks come apart in every Nth step only, by their positions in these, if that costs more.

    Args:
        step_ns: The usual step. Nobody waits longer in a step than it takes.
        positions: Of each step, that of each rank.
        mean_step_ns: The mean step, if known: what waits in few steps are a share of.
    """

    def by_means(rows: Sequence[Sequence[int]]) -> RankSkew:
        return _by_means(ranks, step_ns, rows, basis, error_ns, is_device=is_device)

    usual, least_ns = by_means(positions), _NOTABLE_SHARE * step_ns
    found = _every_nth(positions, steps, least_ns, error_ns)
    if found is not None:
        then = by_means(
            [row for row, step in zip(positions, steps, strict=True) if step in found.steps]
        )
        part = _part(found, steps)
        then = replace(
            then,
            steps=len(positions),
            step_ns=max(step_ns, mean_step_ns),
            wait_ns=round(part * then.wait_ns),
            saving_ns=round(part * then.saving_ns),
            error_ns=round(part * error_ns),
            ranks=tuple(replace(one, wait_ns=round(part * one.wait_ns)) for one in then.ranks),
            course=found,
        )
        # On average over all steps, the same wait shows as well.
        says_more = found.only and then.wait_ns > _MOSTLY * usual.wait_ns
        if then.is_notable and (says_more or _weight(then) > _weight(usual)):
            return _within_a_step(then)
    late = [place for place, rank in enumerate(ranks) if rank in usual.late]
    others = [place for place in range(len(ranks)) if place not in late]
    if usual.is_notable and others:
        waits = [
            round(statistics.median(max(row[i] for i in late) - row[j] for j in others))
            for row in positions
        ]
        usual = replace(usual, course=course_of(steps, waits, max(least_ns, error_ns)))
    return _within_a_step(usual)


def _within_a_step(skew: RankSkew) -> RankSkew:
    return replace(
        skew,
        wait_ns=min(skew.wait_ns, skew.step_ns),
        saving_ns=min(skew.saving_ns, skew.step_ns),
        ranks=tuple(replace(one, wait_ns=min(one.wait_ns, skew.step_ns)) for one in skew.ranks),
    )


def _every_nth(
    positions: Sequence[Sequence[int]], steps: Sequence[int], least_ns: float, error_ns: int
) -> EveryNth | None:
    """The steps in which ranks come apart, or else one does, if they lie at one distance."""
    middles = [statistics.median_low(row) for row in positions]
    apart = [max(row) - middle for row, middle in zip(positions, middles, strict=True)]
    if sum(apart) < least_ns * len(positions):
        return None
    found = every_nth(steps, apart, max(least_ns, error_ns))
    if found is not None:
        return found
    # Pauses of other ranks hide one that comes late in some steps only.
    behind = [
        sum(max(0, row[i] - middle) for row, middle in zip(positions, middles, strict=True))
        for i in range(len(positions[0]))
    ]
    worst = behind.index(max(behind))
    own = [max(0, row[worst] - middle) for row, middle in zip(positions, middles, strict=True)]
    return every_nth(steps, own, max(least_ns, error_ns))


def _by_means(
    ranks: Sequence[int],
    step_ns: int,
    positions: Sequence[Sequence[int]],
    basis: str,
    error_ns: int,
    *,
    is_device: bool,
) -> RankSkew:
    # Times since the epoch are too large for exact halves; their differences are not.
    distances = [[position - row[0] for position in row] for row in positions]
    middles = [statistics.median(row) for row in distances]
    usual = [
        _usual([row[i] - middle for row, middle in zip(distances, middles, strict=True)])
        for i in range(len(ranks))
    ]
    waits = [max(usual) - position for position in usual]
    typical = statistics.median(sorted(waits)[1:])
    late = [i for i, wait in enumerate(waits) if wait < typical / 2] or [waits.index(0.0)]
    chances = {i: equal_ranks.chance_of(positions, i, late) for i in late}
    # One that is as late by chance is not accused beside another that is not.
    certain = [i for i in late if chances[i] <= equal_ranks.LIMIT]
    late = certain or late
    others = [i for i in range(len(ranks)) if i not in late]
    last = [0] * len(ranks)
    for row in positions:
        last[row.index(max(row))] += 1
    order = sorted(range(len(ranks)), key=lambda i: (waits[i], ranks[i]))
    wait_ns = saving_ns = 0.0
    if others:
        wait_ns = _wait_ns(distances, late, others)
        saving_ns = _usual(_savings(distances, late, others))
    return RankSkew(
        basis=basis,
        is_device=is_device,
        steps=len(positions),
        step_ns=step_ns,
        late=tuple(ranks[i] for i in order if i in late),
        wait_ns=max(0, round(wait_ns)),
        saving_ns=round(saving_ns),
        last_share=sum(last[i] for i in late) / len(positions),
        error_ns=error_ns,
        ranks=tuple(RankWait(ranks[i], round(waits[i]), last[i]) for i in order),
        chance=max(chances[i] for i in late),
    )


def _wait_ns(rows: Sequence[Sequence[float]], late: Sequence[int], others: Sequence[int]) -> float:
    """How long another rank usually waits for the late ones: the median of the others."""
    return statistics.median(
        _usual([max(row[i] for i in late) - row[j] for row in rows]) for j in others
    )


def _savings(
    rows: Sequence[Sequence[float]], late: Sequence[int], others: Sequence[int]
) -> list[float]:
    """Of each step, how much earlier the last rank comes if late ranks come as the others do.

    A rank's usual course is its distances from the mean of the ranks that are not late, in order of
    size. A late rank keeps that order over the steps, and has the others' mean course.
    """
    if len(others) < _TWO:
        return [max(row) - max(row[j] for j in others) for row in rows]
    means = [statistics.fmean(row[j] for j in others) for row in rows]
    count = len(others)
    # The mean of the others has the rank itself in it, which makes the distances smaller.
    wider = math.sqrt((count + 1) / (count - 1))
    courses = [sorted(row[j] - mean for row, mean in zip(rows, means, strict=True)) for j in others]
    usual = [statistics.fmean(at) for at in zip(*courses, strict=True)]
    middle = statistics.fmean(usual)
    usual = [middle + wider * (away - middle) for away in usual]
    left = [max(row[j] for j in others) for row in rows]
    for i in late:
        away = [row[i] - mean for row, mean in zip(rows, means, strict=True)]
        order = sorted(range(len(rows)), key=away.__getitem__)
        for place, step in enumerate(order):
            left[step] = max(left[step], means[step] + min(away[step], usual[place]))
    return [max(row) - least for row, least in zip(rows, left, strict=True)]


def _usual(times_ns: Sequence[float]) -> float:
    """The mean without the extremes: of each fifty times, the longest and the shortest."""
    left_out = -(-len(times_ns) // 50) if len(times_ns) >= _LEAST_STEPS else 0
    return statistics.fmean(sorted(times_ns)[left_out : len(times_ns) - left_out])
