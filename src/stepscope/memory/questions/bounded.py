"""Changed histories, run with the memory that the recorded allocator had.

Everything that says whether memory would have sufficed asks here, so that no two answers about a
snapshot contradict each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from stepscope.memory.allocator.settings import AllocatorSettings, settings_of
from stepscope.memory.replay.replay import Replay
from stepscope.memory.simulator.capacity import Capacity, capacity_of
from stepscope.memory.simulator.requests import Requests
from stepscope.memory.simulator.simulate import Simulation, simulate

_MANY_OPERATIONS = 200_000
_FEW_PROBES, _MANY_PROBES = 3, 8


@dataclass(frozen=True)
class Change:
    """A changed program, or a changed allocator.

    Attributes:
        replay: The history.
        requests: What it asks for.
        settings: Of the allocator.
        capacity: What the allocator can reserve.
    """

    replay: Replay
    requests: Requests
    settings: AllocatorSettings
    capacity: Capacity


class BoundedRuns:
    """Runs of one device's history with the memory that there was.

    Args:
        replay: The history.
        device: Its number.

    Attributes:
        recorded: What was recorded.
    """

    def __init__(self, replay: Replay, device: int) -> None:
        self._device = device
        settings = settings_of(replay.snapshot.settings)
        requests = Requests(replay, device)
        self.recorded = Change(replay, requests, settings, capacity_of(replay, device))

    @property
    def capacity(self) -> Capacity:
        """What the recorded allocator could reserve."""
        return self.recorded.capacity

    @cached_property
    def is_reproduced(self) -> bool:
        """Whether the last failed request fails in the model, too, from an empty allocator on.

        How memory was divided before the recording is not known, and may be what it failed of.
        """
        most = self.capacity.most_bytes
        return most is None or not self.run(self.recorded, most).is_enough

    def run(
        self, change: Change, capacity_bytes: int | None, *, is_anew: bool = True
    ) -> Simulation:
        """One simulation.

        Args:
            change: What is run.
            capacity_bytes: What the allocator can reserve; None: without a bound.
            is_anew: Whether it begins with an empty allocator, rather than with the recorded state.
        """
        is_limited = change.capacity.is_limit or change.settings.garbage_collection_threshold > 0
        return simulate(
            change.replay,
            self._device,
            change.settings,
            capacity_bytes=capacity_bytes,
            limit_bytes=capacity_bytes if is_limited else None,
            initial="anew" if is_anew else "recorded",
            requests=change.requests,
        )

    def is_enough(self, change: Change) -> bool | None:
        """Whether memory suffices for a change.

        None: the capacity is not known well enough, or it suffices in the model from an empty
        allocator on, where the recorded program would not have failed either.
        """
        least, most = change.capacity.bytes, change.capacity.most_bytes
        if least is None:
            return None
        if self.run(change, least).is_enough:
            if self.is_reproduced or self.run(change, least, is_anew=False).is_enough:
                return True
            return None
        if most in (None, least):
            return False
        return None if self.run(change, most).is_enough else False

    def needed_bytes(self, change: Change) -> int:
        """The least capacity with which a change is served, as near as a few probes find it.

        With less memory an allocator gives back what it caches, so that this is less than what it
        reserves without a bound.
        """
        boundless = self.run(change, None)
        high = boundless.peak_reserved_bytes
        low = min(boundless.peak_allocated_bytes, high)
        probes = _MANY_PROBES
        if len(boundless.curve) > _MANY_OPERATIONS:
            probes = _FEW_PROBES
        middle = change.capacity.bytes
        for _ in range(probes):
            if middle is not None and low <= middle < high:
                if self.run(change, middle).is_enough:
                    high = middle
                else:
                    low = middle + 1
            middle = (low + high) // 2
        return high
