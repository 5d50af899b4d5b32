"""What the caching allocator would have reserved for a recorded program, with any settings.

The requests and frees of the history are run through a model of the allocator. With the settings of
the recording, and beginning with the recorded state, that reproduces what was observed; how well it
does is measured (`reproduce`), and every other answer is worth as much as that. With other settings
it says what these would have reserved, and whether memory would have sufficed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.errors import UsageError
from stepscope.memory.allocator.settings import AllocatorSettings, settings_of
from stepscope.memory.replay.arrays import Int64Array
from stepscope.memory.replay.replay import Replay
from stepscope.memory.replay.state import state_at
from stepscope.memory.simulator import blocks as b
from stepscope.memory.simulator.blocks import (
    ADDRESS_SPACE,
    CAPACITY,
    COLLECT_ABOVE,
    EXPANDABLE,
    LARGE_SEGMENT,
    LIMIT,
    MAX_SPLIT,
    ROUNDING_LIMIT,
    UNLIMITED,
)
from stepscope.memory.simulator.initial import (
    Machine,
    give_addresses,
    load_state,
)
from stepscope.memory.simulator.machine import (
    FAILED,
    LET_POOL_GO,
    NEEDS_SLOTS,
    OUT_OF_MEMORY,
    run_by_loop,
)
from stepscope.memory.simulator.operations import Operations, Requests, requests_of
from stepscope.trace.machine.jit import jit

_BOUNDLESS = 2**46
"""Address space of an expandable segment where the device's memory is not known."""


@dataclass(frozen=True)
class Simulation:
    """What the allocator would have done.

    Attributes:
        peak_reserved_bytes: The most that was reserved at any time.
        allocated_then_bytes: What was allocated when the most was reserved.
        peak_allocated_bytes: The most that was allocated at any time, in rounded sizes.
        curve: What was reserved and allocated after each of the history's events that concerns the
            simulation, if that was asked for: event (-1 before the first), reserved_bytes,
            allocated_bytes.
        failures: Requests that failed in the recording: event, size_bytes, and is_served, whether
            they could be served now.
        failed_event: The event at which a request fails that did not in the recording; the
            simulation ends there. None: none fails.
        retries: How often everything cached had to be given back first.
        machine: The simulated allocator at the end.
        places: Its pairs of pool and stream, by their numbers.
    """

    device: int
    peak_reserved_bytes: int
    allocated_then_bytes: int
    peak_allocated_bytes: int
    operations: int
    curve: pl.DataFrame
    failures: pl.DataFrame
    failed_event: int | None
    device_allocs: int
    device_frees: int
    retries: int
    machine: Machine = field(repr=False)
    places: tuple[tuple[int, int], ...]

    @property
    def unused_share(self) -> float | None:
        """How much of the most that was reserved was not allocated at that moment."""
        most = self.peak_reserved_bytes
        return 1 - self.allocated_then_bytes / most if most else None

    @property
    def is_enough(self) -> bool:
        """Whether memory suffices.

        No request fails that was served in the recording, and the last that failed there is served.
        """
        return self.failed_event is None and all(self.failures["is_served"].tail(1))


def simulate(
    replay: Replay,
    device: int,
    settings: AllocatorSettings,
    *,
    capacity_bytes: int | None = None,
    limit_bytes: int | None = None,
    initial: Literal["recorded", "anew"] = "anew",
    requests: Requests | None = None,
    keeps_curve: bool = False,
) -> Simulation:
    """Runs a history through an allocator with some settings.

    Calls of `empty_cache` are the program's, and happen as recorded. What the recorded allocator
    gave back because it needed room does not: the simulated one does so when it needs to.

    With `initial` "recorded", it begins with the segments and blocks of the recording; "anew", what
    was allocated before the recording is requested again, in order of addresses. Without a capacity
    (`capacity_of`), memory has no bound; `limit_bytes` is what the process is allowed
    (`set_per_process_memory_fraction`). `requests` are known already from another simulation.
    """
    if settings.garbage_collection_threshold and limit_bytes is None:
        raise UsageError(
            "garbage_collection_threshold has an effect only with a limit of the process: say "
            "how many bytes it is allowed"
        )
    return _run(
        replay,
        device,
        settings,
        requests or requests_of(replay, device),
        is_recorded=initial == "recorded",
        capacity_bytes=capacity_bytes,
        limit_bytes=limit_bytes,
        keeps_curve=keeps_curve,
    )


def _run(
    replay: Replay,
    device: int,
    settings: AllocatorSettings,
    requests: Requests,
    *,
    is_recorded: bool,
    is_reproduced: bool = False,
    capacity_bytes: int | None = None,
    limit_bytes: int | None = None,
    keeps_curve: bool,
) -> Simulation:
    """Runs a history, from the recorded state on or anew; `is_reproduced`: doing as observed."""
    stretches, places, operations = requests
    machine = Machine(len(replay.allocations), [pool for pool, _ in places])
    first, count = 0, len(operations.event)
    if is_recorded:
        state = state_at(replay, device, -1)
        load_state(machine, state, stretches, settings, places, _BOUNDLESS)
        first = int(np.searchsorted(operations.event, 0))
    if is_reproduced:
        give_addresses(machine, stretches, places)
    numbers, at = machine.numbers, first
    _configure(machine.config, settings, capacity_bytes, limit_bytes)
    before = int(numbers[b.RESERVED]), int(numbers[b.ALLOCATED])
    numbers[[b.PEAK_RESERVED, b.ALLOCATED_THEN, b.PEAK_ALLOCATED]] = *before, before[1]
    kept = np.zeros((2, count if keeps_curve else 0), np.int64)
    served = np.zeros(count, np.bool_)
    divisions = np.array(settings.power2_divisions, np.int64)
    status = np.array([NEEDS_SLOTS])
    while status[0] == NEEDS_SLOTS:
        at = jit(run_by_loop)(
            *operations, at, not is_reproduced, machine.arrays, divisions, kept[0], kept[1],
            served, status,
        )  # fmt: skip
        if status[0] == NEEDS_SLOTS:
            machine.grow()
    has_failed = bool(status[0] == OUT_OF_MEMORY)
    return Simulation(
        device=device,
        peak_reserved_bytes=int(numbers[b.PEAK_RESERVED]),
        allocated_then_bytes=int(numbers[b.ALLOCATED_THEN]),
        peak_allocated_bytes=int(numbers[b.PEAK_ALLOCATED]),
        operations=count,
        curve=_curve(operations, (first, at if keeps_curve else first), kept, before),
        failures=_failures(operations, at, served),
        failed_event=int(operations.event[at]) if has_failed else None,
        device_allocs=int(numbers[b.DEVICE_ALLOCS]),
        device_frees=int(numbers[b.DEVICE_FREES]),
        retries=int(numbers[b.RETRIES]),
        machine=machine,
        places=tuple(places),
    )


def _configure(
    config: Int64Array,
    settings: AllocatorSettings,
    capacity_bytes: int | None,
    limit_bytes: int | None,
) -> None:
    capacity = UNLIMITED if capacity_bytes is None else capacity_bytes
    config[EXPANDABLE] = settings.expandable_segments
    split = settings.max_split_bytes
    config[MAX_SPLIT] = UNLIMITED if split is None else split
    config[ROUNDING_LIMIT] = settings.rounding_limit_bytes
    config[LARGE_SEGMENT] = settings.large_segment_bytes
    config[CAPACITY] = capacity
    config[LIMIT] = 0 if limit_bytes is None else limit_bytes
    config[COLLECT_ABOVE] = int(settings.garbage_collection_threshold * (limit_bytes or 0))
    is_bounded = capacity_bytes is not None
    config[ADDRESS_SPACE] = capacity + capacity // 8 if is_bounded else _BOUNDLESS


def _curve(
    operations: Operations, rows: tuple[int, int], kept: Int64Array, before: tuple[int, int]
) -> pl.DataFrame:
    """What holds after each event; several operations of one event count as one."""
    # What lets a pool go changes nothing itself.
    done = rows[0] + np.flatnonzero(operations.what[slice(*rows)] != LET_POOL_GO)
    event = np.append(-1, operations.event[done])
    last = np.append(event[1:] != event[:-1], True)
    table = {"event": event[last]}
    for name, start, values in zip(("reserved", "allocated"), before, kept, strict=True):
        table[f"{name}_bytes"] = np.append(start, values[done])[last]
    return pl.DataFrame(table)


def _failures(operations: Operations, done: int, served: npt.NDArray[np.bool_]) -> pl.DataFrame:
    rows = np.flatnonzero(operations.what[:done] == FAILED)
    return pl.DataFrame(
        {
            "event": operations.event[rows],
            "size_bytes": operations.size[rows],
            "is_served": served[rows],
        }
    )


TOLERANCE = 0.01
"""Share of the reserved bytes by which a simulation may be off to count as right."""


@dataclass(frozen=True)
class Reproduction:
    """A simulation with the settings of the recording, beside what was observed.

    Attributes:
        largest_error: The largest difference of reserved bytes at any event, as a share of what was
            observed then.
    """

    simulation: Simulation
    largest_error: float

    @property
    def is_right(self) -> bool:
        """Whether the difference is at most 1% at every event."""
        return self.largest_error <= TOLERANCE


def reproduce(replay: Replay, device: int, requests: Requests | None = None) -> Reproduction:
    """Simulates a recording with its own settings, and compares.

    The allocator gives memory back when the recorded one did, begins with the recorded state, and
    gets new segments where they were: it does what was observed, as far as the model is right.
    """
    requests = requests or requests_of(replay, device)
    recorded = settings_of(replay.snapshot.settings)
    simulation = _run(
        replay, device, recorded, requests, is_recorded=True, is_reproduced=True, keeps_curve=True
    )
    compared = simulation.curve.filter(pl.col("event") >= 0).join(
        replay.curve.select("event", pl.col("reserved_bytes").alias("observed")), on="event"
    )
    observed = compared["observed"].to_numpy()
    off = np.abs(compared["reserved_bytes"].to_numpy() - observed)
    share = off / np.maximum(observed, 1)
    return Reproduction(simulation, float(share.max(initial=0.0)))
