"""What a step would be shorter by, in the recorded steps and in the steady state.

A recording of a few steps may begin with hosts that are not ahead of their GPUs, or end before a
rank has used up what it is ahead: what is saved there is not saved in each step of a job that goes
on for days.

Definitions of the steady state
    The recorded steps follow each other again and again. What a rank does before its first
    collectives is not wholly recorded; it is what it does before the same ones of a later step.
    Of a rank of which no launches are known, only its time after the collective before is, and the
    rest is its local time, as recorded.
    At the beginning no host is ahead of its GPU. Steps are repeated until they take equally long.
    A host that has not waited for its GPU between two collectives gets as far ahead as it can:
    its GPU waits for what it launches, and not for as long as it happened to wait when recorded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from stepscope.analysis.blame.matched import OF_THE_GPU, SYNCHRONISING, Matched, Numbers
from stepscope.analysis.blame.replay import (
    RUNS_AHEAD,
    UNKNOWN_LAUNCH,
    Less,
    Replay,
    Times,
    replay_by_loop,
)
from stepscope.analysis.calls.collectives import POINT_TO_POINT
from stepscope.skew.rank_causes import OTHER
from stepscope.trace.machine.jit import jit

_MOST_REPEATED = 16
_SETTLED = 0.001
"""Of a repetition: by how much it may differ from the one before at the most."""


_CyclicSteps = tuple[Numbers, Numbers, Numbers, Numbers]
"""Of each row, the row that says what is done before it; then `previous`, `launched_before` and
`worked_before` of `Matched`, where rows at the beginning follow those at the end."""


class RepeatedSteps:
    """A job's recorded steps, to be repeated."""

    def __init__(self, matched: Matched, replay: Replay, cyclic: _CyclicSteps) -> None:
        """Prepares repetitions."""
        self._matched = matched
        self._replay = replay
        self._like, *self._links = cyclic
        self._steps = len(np.unique(matched.step))
        like = self._like
        is_ahead = (replay.launches == RUNS_AHEAD) & (replay.devices > 0)
        of_gpu = np.array([cause in (*OF_THE_GPU, OTHER) for cause in matched.causes])
        idle = np.where(is_ahead, matched.local_ns[:, ~of_gpu].sum(axis=1), 0)
        times = replay.times
        gap = np.maximum(times.gap - idle, 0)[like]
        # Of these, the time before the first collective is known as well as of any other.
        self._own = replay.launches[like] == UNKNOWN_LAUNCH
        local = matched.local_ns.sum(axis=1)
        self._is_ahead = is_ahead[like]
        self._times = Times(
            np.where(self._own, np.maximum(gap - local[like] + local, 0), gap),
            times.host[like],
            times.waits[like],
            times.device[like],
            times.launched_work[like],
            times.transfer,
            times.is_launched[like],
            times.awaited,
        )

    def step_ns(self, less: Less | None = None) -> float:
        """What a step takes."""
        matched, replay, times = self._matched, self._replay, self._times
        like, (previous, launched_before, worked_before) = self._like, self._links
        if less is not None:
            moved = Less(
                self._moved(less.work_ns),
                less.transfer_ns,
                self._moved(less.host_ns),
                less.on_time,
            )
            times = times.without(moved, self._is_ahead)
        launches = (
            replay.launches[like], launched_before, times.host + times.waits,
            matched.queued_ns[like], replay.start_up,
        )  # fmt: skip
        devices = (
            replay.devices[like], worked_before, times.device, matched.ready_ns[like],
            times.launched_work,
        )  # fmt: skip
        # What rows at the end are left with is what those at the beginning follow.
        end, arrival = np.zeros(len(times.transfer), np.int64), np.zeros(len(like), np.int64)
        launched, ready = np.zeros(len(like), np.int64), np.zeros(len(like), np.int64)
        last = took = 0.0
        for number in range(_MOST_REPEATED):
            jit(replay_by_loop)(
                matched.collective, previous, matched.first_row, matched.rows, times.gap,
                replay.beside, launches, devices, times.transfer, times.awaited, end, arrival,
                launched, ready,
            )  # fmt: skip
            # Ranks that no collective connects may take differently long.
            mean = float(end.mean())
            before, took, last = took, mean - last, mean
            if number > 1 and abs(took - before) <= _SETTLED * took:
                break
        return took / self._steps

    def _moved(self, less_ns: Numbers | None) -> Numbers | None:
        if less_ns is None:
            return None
        moved: Numbers = np.where(self._own, less_ns, less_ns[self._like])
        return moved


def _cyclic_steps(matched: Matched, like_step: int) -> _CyclicSteps | None:
    """How the recorded steps follow each other again and again.

    Args:
        like_step: Which step says what is done before the first collectives, from 1.

    Returns:
        None if a rank has other collectives in the first step than in that one or the last: then it
        is not known what follows what.
    """
    steps = np.unique(matched.step)
    if len(steps) <= like_step or steps[0] < 0:
        return None
    like = np.arange(len(matched.rank))
    links = matched.previous.copy(), matched.launched_before.copy(), matched.worked_before.copy()
    dimension = np.column_stack((matched.group, matched.kind))[matched.collective]
    bounds = np.searchsorted(matched.rank, np.arange(len(matched.ranks) + 1))
    for start, end in pairwise(bounds.tolist()):
        rows = np.arange(start, end)
        of_step = matched.step[rows]
        known = (steps[0], steps[like_step], steps[-1])
        first, later, last = (rows[of_step == step] for step in known)
        if (np.diff(of_step) < 0).any() or not len(first):
            return None
        for others in (later, last):
            if len(others) != len(first) or (dimension[first] != dimension[others]).any():
                return None
        begins = np.minimum.reduce([link[first] for link in links]) < 0
        like[first[begins]] = later[begins]
        for link in links:
            before = link[later[begins]]
            # As far before the end as it is before the later step, or in the first one.
            at_end = (before >= 0) & (before < later[0])
            in_first = before - (later[0] - first[0])
            found = np.where(at_end, before - later[0] + last[-1] + 1, in_first)
            found[before < 0] = -1
            if (matched.collective[found] < matched.collective[first[begins]])[at_end].any():
                return None
            link[first[begins]] = found
    return like, *links


_NEARLY = 0.8
_NOTABLE = 0.02
"""Of a step."""
_MOST_BEGINNINGS = 3
"""Steps that may stand for the beginning of the first one."""


@dataclass(frozen=True)
class Gain:
    """What a step is shorter by, in nanoseconds.

    Attributes:
        recorded_ns: On average over the recorded steps, as `replay.py` has them.
        steady_ns: In the steady state, as `RepeatedSteps` has it; None where that is not known.
    """

    recorded_ns: float
    steady_ns: float | None

    @property
    def sure_ns(self) -> float:
        """What the recorded steps are shorter by, unless those that follow are by far less.

        Few repeated steps are less exact than the recorded ones, whose first arrivals are known.
        """
        if self.steady_ns is None or self.recorded_ns <= 0:
            return self.recorded_ns
        if self.steady_ns >= _NEARLY * self.recorded_ns:
            return self.recorded_ns
        return max(0.0, self.steady_ns)


@dataclass(frozen=True)
class OnTime:
    """A job of which some ranks come no later than the others.

    Attributes:
        next_rank: The one that comes last then to the collectives that these ranks were last to.
        is_passing: Whether most is gained only where the recording begins.
    """

    gain_ns: int
    next_rank: int
    is_passing: bool


class Gains:
    """A job's collectives, to be replayed with less work or shorter transfers."""

    def __init__(self, matched: Matched, replay: Replay) -> None:
        """Prepares replays."""
        self._matched = matched
        self.replay = replay
        self.steps = max(len(np.unique(matched.step[matched.step >= 0])), 1)
        self._on_time: dict[tuple[int, ...], OnTime | None] = {}
        self._known_repeats: dict[int, tuple[RepeatedSteps, float]] = {}

    @cached_property
    def whole_ns(self) -> int:
        """The recording as replayed, with nothing shortened."""
        return self.replay.duration_ns()

    def of(self, less: Less) -> Gain:
        """What a step is shorter by."""
        recorded_ns = (self.whole_ns - self.replay.duration_ns(less)) / self.steps
        steady_ns = None
        for repeated, step_ns in self._repeats():
            # Which step the beginning is taken from is arbitrary: chance in it does not count.
            steady_ns = max(steady_ns or 0.0, step_ns - repeated.step_ns(less))
            if steady_ns >= _NEARLY * recorded_ns:
                break
        return Gain(recorded_ns, steady_ns)

    def by_step_ns(self, less: Less) -> npt.NDArray[np.float64]:
        """What each recorded step is shorter by, in order of the steps."""
        matched = self._matched
        steps, step = np.unique(matched.step, return_inverse=True)
        lasted = []
        for ends, first in (self.replay.ends_ns(), self.replay.ends_ns(less)):
            over = np.full(len(steps), first, np.int64)
            np.maximum.at(over, step, ends[matched.collective])
            lasted.append(np.diff(over, prepend=first))
        gained: npt.NDArray[np.float64] = (lasted[0] - lasted[1]).astype(np.float64)
        return gained

    def on_time(self, ranks: Collection[int]) -> OnTime | None:
        """What a step is shorter by if some ranks come no later than the others.

        Returns:
            None if there are no others.
        """
        these = tuple(sorted(set(ranks)))
        if these not in self._on_time:
            self._on_time[these] = self._without_waits_for(these)
        return self._on_time[these]

    def _without_waits_for(self, ranks: tuple[int, ...]) -> OnTime | None:
        matched = self._matched
        is_fixed = np.isin(matched.ranks, ranks)
        if is_fixed.all():
            return None
        # The stages of a pipeline wait in sends and receives for each other by design.
        is_exchange = (matched.kind == SYNCHRONISING.index(POINT_TO_POINT))[matched.collective]
        less = Less(on_time=is_fixed[matched.rank] & ~is_exchange)
        # The others of each collective, the one that then waits least first.
        rows = np.flatnonzero(~is_fixed[matched.rank])
        rows = rows[np.lexsort((self.replay.waits_ns(less)[rows], matched.collective[rows]))]
        collective, first = np.unique(matched.collective[rows], return_index=True)
        waited_ns = np.bincount(matched.collective, matched.wait_ns, len(matched.group))
        waited_ns *= is_fixed[matched.rank[matched.last_row]]
        last = matched.rank[rows[first]]
        up_to = np.bincount(last, waited_ns[collective], len(is_fixed))
        gain = self.of(less)
        # Who comes late to its first collective once is late in no step of the steady state.
        steady_ns = gain.recorded_ns if gain.steady_ns is None else gain.steady_ns
        gain_ns = max(0, round(min(gain.recorded_ns, steady_ns)))
        next_rank = matched.ranks[~is_fixed][int(up_to[~is_fixed].argmax())]
        least_ns = max(2 * gain_ns, _NOTABLE * self.whole_ns / self.steps)
        return OnTime(gain_ns, int(next_rank), gain.recorded_ns > least_ns)

    def _repeats(self) -> Iterator[tuple[RepeatedSteps, float]]:
        """The steps in the steady state, and what one takes; by what the first one begins with."""
        for like in range(1, min(self.steps, _MOST_BEGINNINGS + 1)):
            if like not in self._known_repeats:
                cyclic = _cyclic_steps(self._matched, like)
                if cyclic is None:
                    return
                found = RepeatedSteps(self._matched, self.replay, cyclic)
                self._known_repeats[like] = found, found.step_ns()
            yield self._known_repeats[like]
