"""How well the simulated allocator does what the recorded one did."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.memory.allocator.settings import settings_of
from stepscope.memory.replay.replay import Replay
from stepscope.memory.simulator.requests import Requests
from stepscope.memory.simulator.simulate import Simulation, simulate_as_recorded

TOLERANCE = 0.01
"""Share of the reserved bytes by which a simulation may be off to count as right."""


@dataclass(frozen=True)
class Reproduction:
    """A simulation with the settings of the recording, beside what was observed.

    Attributes:
        simulation: What the model did.
        compared_events: Events at which reserved bytes were compared: requests, frees, releases.
        largest_error_bytes: The largest difference of reserved bytes at any of them.
        largest_error: The same as a share of what was observed then.
        within_tolerance: The share of these events at which the difference is at most 1%.
        same_address: The share of allocations of the recording that the model puts where they were.
        first_error_event: The first event at which reserved bytes differ at all; None: none.
    """

    simulation: Simulation
    compared_events: int
    largest_error_bytes: int
    largest_error: float
    within_tolerance: float
    same_address: float
    first_error_event: int | None

    @property
    def is_right(self) -> bool:
        """Whether the difference is at most 1% at every event."""
        return self.within_tolerance == 1.0


def reproduce(replay: Replay, device: int, requests: Requests | None = None) -> Reproduction:
    """Simulates a recording with its own settings, and compares.

    Args:
        replay: The history.
        device: Its number.
        requests: What the history asked for, if it is known already from another simulation.
    """
    settings = settings_of(replay.snapshot.settings)
    simulation = simulate_as_recorded(replay, device, settings, requests)
    compared = simulation.curve.filter(pl.col("event") >= 0).join(
        replay.curve.select("event", pl.col("reserved_bytes").alias("observed")),
        on="event",
        how="inner",
        maintain_order="left",
    )
    observed = compared["observed"].to_numpy()
    off = np.abs(compared["reserved_bytes"].to_numpy() - observed)
    share = off / np.maximum(observed, 1)
    wrong = np.flatnonzero(off)
    placed = replay.allocations.filter(
        (pl.col("device") == device) & pl.col("start_event").is_not_null()
    ).join(simulation.allocations, on="allocation", how="inner", suffix="_simulated")
    is_same = placed["address"] == placed["address_simulated"]
    count = len(compared)
    return Reproduction(
        simulation=simulation,
        compared_events=count,
        largest_error_bytes=int(off.max()) if count else 0,
        largest_error=float(share.max()) if count else 0.0,
        within_tolerance=float((share <= TOLERANCE).mean()) if count else 1.0,
        same_address=float(is_same.to_numpy().mean()) if len(placed) else 1.0,
        first_error_event=int(compared["event"][int(wrong[0])]) if len(wrong) else None,
    )
