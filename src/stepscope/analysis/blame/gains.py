"""What a step would be shorter by, in the recorded steps and in the long run."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from stepscope.analysis.blame.long_run import LongRun
from stepscope.analysis.blame.matched import SYNCHRONISING, Matched
from stepscope.analysis.blame.replay import Less, Replay
from stepscope.analysis.calls.collectives import POINT_TO_POINT

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
        long_run_ns: In the long run, as `long_run.py` has it; None where that is not known.
    """

    recorded_ns: float
    long_run_ns: float | None

    @property
    def sure_ns(self) -> float:
        """What the recorded steps are shorter by, unless those that follow are by far less.

        Few repeated steps are less exact than the recorded ones, whose first arrivals are known.
        """
        if self.long_run_ns is None or self.recorded_ns <= 0:
            return self.recorded_ns
        if self.long_run_ns >= _NEARLY * self.recorded_ns:
            return self.recorded_ns
        return max(0.0, self.long_run_ns)


@dataclass(frozen=True)
class OnTime:
    """A job of which some ranks come no later than the others.

    Attributes:
        gain_ns: What a step is shorter by.
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

    @cached_property
    def whole_ns(self) -> int:
        """The recording as replayed, with nothing shortened."""
        return self.replay.duration_ns()

    def of(self, less: Less) -> Gain:
        """What a step is shorter by."""
        recorded_ns = (self.whole_ns - self.replay.duration_ns(less)) / self.steps
        long_run_ns = None
        for long_run, step_ns in self._long_runs():
            # Which step the beginning is taken from is arbitrary: chance in it does not count.
            long_run_ns = max(long_run_ns or 0.0, step_ns - long_run.step_ns(less))
            if long_run_ns >= _NEARLY * recorded_ns:
                break
        return Gain(recorded_ns, long_run_ns)

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
        steady_ns = gain.recorded_ns if gain.long_run_ns is None else gain.long_run_ns
        gain_ns = max(0, round(min(gain.recorded_ns, steady_ns)))
        next_rank = matched.ranks[~is_fixed][int(up_to[~is_fixed].argmax())]
        least_ns = max(2 * gain_ns, _NOTABLE * self.whole_ns / self.steps)
        return OnTime(gain_ns, int(next_rank), gain.recorded_ns > least_ns)

    @cached_property
    def _on_time(self) -> dict[tuple[int, ...], OnTime | None]:
        return {}

    def _long_runs(self) -> Iterator[tuple[LongRun, float]]:
        """The steps in the long run, and what one takes; by what the first one begins with."""
        for like in range(1, min(self.steps, _MOST_BEGINNINGS + 1)):
            if like not in self._known_long_runs:
                found = LongRun.of(self._matched, self.replay, like)
                if found is None:
                    return
                self._known_long_runs[like] = found, found.step_ns()
            yield self._known_long_runs[like]

    @cached_property
    def _known_long_runs(self) -> dict[int, tuple[LongRun, float]]:
        return {}
