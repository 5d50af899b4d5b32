"""Changed histories, run with the memory that the recorded allocator had.

Everything that says whether memory would have sufficed asks here, so that no two answers about a
snapshot contradict each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import polars as pl

from stepscope.memory.allocator.settings import AllocatorSettings, settings_of
from stepscope.memory.questions.over_time import HeldBytes
from stepscope.memory.replay.arrays import largest
from stepscope.memory.replay.replay import Replay
from stepscope.memory.simulator.capacity import Capacity, capacity_of
from stepscope.memory.simulator.operations import Requests, requests_of
from stepscope.memory.simulator.simulate import Simulation, simulate
from stepscope.memory.view import MemoryView

_MANY_OPERATIONS = 200_000
_PROBES = 8


@dataclass(frozen=True)
class Change:
    """A changed program, or a changed allocator."""

    replay: Replay
    requests: Requests
    settings: AllocatorSettings
    capacity: Capacity


class BoundedRuns:
    """Runs of one device's history with the memory that there was."""

    def __init__(self, replay: Replay, device: int) -> None:
        self._device = device
        settings = settings_of(replay.snapshot.settings)
        requests = requests_of(replay, device)
        self.recorded = Change(replay, requests, settings, capacity_of(replay, device))
        self._of_last: tuple[Change, dict[tuple[int | None, bool], Simulation]] = (
            self.recorded,
            {},
        )

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
        return most is None or not self.outcome(self.recorded, most).is_enough

    def outcome(
        self, change: Change, capacity_bytes: int | None, *, is_anew: bool = True
    ) -> Simulation:
        """A simulation. Those of the change that was asked about last are kept.

        Without a capacity, memory has no bound; unless `is_anew`, it begins with the recorded
        state, rather than with an empty allocator.
        """
        last, known = self._of_last
        if last is not change:
            known = {}
            self._of_last = change, known
        asked = (capacity_bytes, is_anew)
        if asked not in known:
            is_early = change.settings.garbage_collection_threshold > 0
            known[asked] = simulate(
                change.replay,
                self._device,
                change.settings,
                capacity_bytes=capacity_bytes,
                limit_bytes=capacity_bytes if change.capacity.is_limit or is_early else None,
                initial="anew" if is_anew else "recorded",
                requests=change.requests,
            )
        return known[asked]

    def is_enough(self, change: Change) -> bool | None:
        """Whether memory suffices for a change.

        None: the capacity is not known well enough, or it suffices in the model from an empty
        allocator on, where the recorded program would not have failed either.
        """
        least, most = change.capacity.bytes, change.capacity.most_bytes
        if least is None:
            return None
        if self.outcome(change, least).is_enough:
            if self.is_reproduced or self.outcome(change, least, is_anew=False).is_enough:
                return True
            return None
        if most in (None, least):
            return False
        return None if self.outcome(change, most).is_enough else False

    def needed_bytes(self, change: Change) -> int:
        """The least capacity with which a change is served, as near as a few probes find it.

        With less memory an allocator gives back what it caches, so that this is less than what it
        reserves without a bound.
        """
        asked = change.capacity.bytes
        # What is collected early depends on the limit: with less, other blocks may be.
        is_early = change.settings.garbage_collection_threshold > 0
        found = None if asked is None else self.outcome(change, asked)
        if found is not None and found.is_enough and not is_early:
            low, high = found.peak_allocated_bytes, found.peak_reserved_bytes
        else:
            is_served = found is not None and found.is_enough
            found = self.outcome(change, None)
            low, high = found.peak_allocated_bytes, found.peak_reserved_bytes
            if asked is not None:
                low, high = (low, min(high, asked)) if is_served else (max(low, asked + 1), high)
        for _ in range(0 if found.operations > _MANY_OPERATIONS else _PROBES):
            middle = (low + high) // 2
            if low <= middle < high:
                if (bounded := self.outcome(change, middle)).is_enough:
                    high = middle if is_early else bounded.peak_reserved_bytes
                else:
                    low = middle + 1
        return high


@dataclass(frozen=True)
class Run:
    """A run at a known size.

    Attributes:
        size: The batch size, the sequence length, the ranks that share the state, or whatever was
            varied.
    """

    size: float
    view: MemoryView


@dataclass(frozen=True)
class Peaks:
    """The peaks of a history.

    Attributes:
        requested_bytes: The most that was asked for and held.
        allocated_bytes: The same in blocks of the allocator.
        reserved_bytes: The most that the allocator reserved.
        fits: Whether it fits into what the device has for the allocator; None: that is not given.
    """

    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    fits: bool | None


def observed_peaks(view: MemoryView, device: int) -> Peaks:
    """The recorded peaks of a device."""
    curve = view.curve(device)
    names = ("requested_bytes", "allocated_bytes", "reserved_bytes")
    requested, allocated, reserved = (largest(curve[name]) for name in names)
    return Peaks(requested, allocated, reserved, None)


def predicted_peaks(
    replay: Replay, device: int, settings: AllocatorSettings, capacity_bytes: int | None = None
) -> Peaks:
    """The peaks of a changed history, by simulation."""
    requests = requests_of(replay, device)
    run = simulate(replay, device, settings, requests=requests)
    fits = None
    if capacity_bytes is not None:
        fits = fits_into(replay, device, settings, capacity_bytes, requests)
    return Peaks(
        peak_requested(replay, device), run.peak_allocated_bytes, run.peak_reserved_bytes, fits
    )


def fits_into(
    replay: Replay,
    device: int,
    settings: AllocatorSettings,
    capacity_bytes: int,
    requests: Requests | None = None,
) -> bool:
    """Whether no request of a history fails if the device has so many bytes for the allocator."""
    run = simulate(
        replay,
        device,
        settings,
        capacity_bytes=capacity_bytes,
        limit_bytes=capacity_bytes,
        requests=requests,
    )
    return run.failed_event is None


def peak_requested(replay: Replay, device: int) -> int:
    """The most that is asked for and held at any time."""
    mine = replay.allocations.filter(pl.col("device") == device)
    held = HeldBytes.of(mine, "requested_bytes")
    return int(held.after(held.begun).max(initial=0))
