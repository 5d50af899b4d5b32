"""GPU clocks of the ranks of a job, compared: whose GPU runs slower than its peers', and why.

Definitions
    Clock of a rank: the median clock of its GPU's multiprocessors over the samples in which the GPU
    was busy (see `metrics`); an idle GPU lowers its clock without harm.
    Peers: the other ranks with a GPU of the same name.
    Slow: the clock is at most `SLOW_SHARE` of the median of the peers' clocks, and lower than it by
    more than five times their spread (the median distance from their median, scaled to a normal
    distribution's standard deviation). GPUs of one model differ by some percent where power limits
    them, so a wide spread accuses nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stepscope.analysis.record.metrics import MetricsSummary
from stepscope.run.figures import percent
from stepscope.run.metrics import THROTTLE_REASONS

SLOW_SHARE = 0.9
_FEWEST_SAMPLES = 5
_SPREADS = 5
_NORMAL = 1.4826
_OFTEN = 0.1
_SETTING = "applications_clocks_setting"


@dataclass(frozen=True)
class GpuClock:
    """The clock of one rank's GPU.

    Attributes:
        samples: How many samples had the GPU busy.
        clock_mhz: Median of the multiprocessors' clock over these.
        power_watts: Mean; None if unknown.
        temperature_celsius: The highest; None if unknown.
        reasons: Why the clock was lowered, with the share of samples: those in a tenth of them or
            more, the most frequent first.
    """

    gpu: str
    samples: int
    clock_mhz: float
    power_watts: float | None
    temperature_celsius: float | None
    reasons: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class SlowClock:
    """A GPU that runs at a lower clock than its peers.

    Attributes:
        peers: How many ranks it is compared with.
        peers_mhz: Median of their clocks.
    """

    own: GpuClock
    peers: int
    peers_mhz: float

    @property
    def share(self) -> float:
        """Its clock as a share of its peers'."""
        return self.own.clock_mhz / self.peers_mhz

    def words(self) -> str:
        """The figures, as a clause."""
        own = self.own
        why = ", ".join(f"{name.replace('_', ' ')} {percent(share)}" for name, share in own.reasons)
        celsius = own.temperature_celsius
        heat = "" if celsius is None else f", up to {celsius:.0f} °C"
        power = "" if own.power_watts is None else f", {own.power_watts:.0f} W"
        return (
            f"{own.clock_mhz:.0f} MHz, {percent(self.share)} of its peers' {self.peers_mhz:.0f} MHz"
            f"{heat}{power}; {f'clock lowered by: {why}' if why else 'no reason recorded'}"
        )


def clock_of(metrics: MetricsSummary) -> GpuClock | None:
    """The clock of a rank's GPU; None if its metrics do not tell.

    Metrics of several GPUs do not say which of them is the rank's.
    """
    if len(metrics.gpus) != 1:
        return None
    row = metrics.gpus.row(0, named=True)
    if row["busy_clock_mhz"] is None or row["busy_samples"] < _FEWEST_SAMPLES:
        return None
    shares = {reason: row[f"throttled_{reason}_share"] for reason in THROTTLE_REASONS}
    shares[_SETTING] = row["set_lower_share"]
    often = [(reason, share) for reason, share in shares.items() if share and share >= _OFTEN]
    return GpuClock(
        row["name"] or "",
        row["busy_samples"],
        row["busy_clock_mhz"],
        row["power_watts"],
        row["temperature_peak_celsius"],
        tuple(sorted(often, key=lambda one: -one[1])),
    )


def slow_clocks(
    clocks: Mapping[int, GpuClock], most_share: float = SLOW_SHARE
) -> dict[int, SlowClock]:
    """Finds the ranks whose GPUs run at a lower clock than their peers'.

    Args:
        most_share: Share of the peers' clock up to which a clock is slow.
    """
    found = {}
    by_name: dict[str, list[int]] = {}
    for rank, clock in clocks.items():
        by_name.setdefault(clock.gpu, []).append(rank)
    for ranks in by_name.values():
        all_mhz = np.array([clocks[rank].clock_mhz for rank in ranks])
        for place, rank in enumerate(ranks if len(ranks) > 1 else ()):
            peers = np.delete(all_mhz, place)
            usual = float(np.median(peers))
            spread = _NORMAL * float(np.median(np.abs(peers - usual)))
            own = clocks[rank].clock_mhz
            if own <= most_share * usual and usual - own > _SPREADS * spread:
                found[rank] = SlowClock(clocks[rank], len(peers), usual)
    return found
