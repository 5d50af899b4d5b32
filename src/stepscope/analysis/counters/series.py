"""`Series`: one counter over time.

A series is a step function: a value holds from its time up to the next one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.trace.arrays.intervals import Int64Array

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Series:
    """One counter.

    Attributes:
        name: What is counted, for people.
        group: Counters of a group are drawn below each other: "memory", "queue", "metrics", ….
        unit: "bytes", "count", "share", "watts", ….
        time_ns: When the value changes, in order, each moment once.
        value: The value from then on.
    """

    name: str
    group: str
    unit: str
    time_ns: Int64Array
    value: Float64Array

    def __post_init__(self) -> None:
        if len(self.time_ns) != len(self.value):
            raise ValueError(f"'{self.name}' has as many times as values")
        if (np.diff(self.time_ns) <= 0).any():
            raise ValueError(f"the times of '{self.name}' are out of order")

    @property
    def highest(self) -> float:
        """The greatest value; 0 where there is none."""
        return float(self.value.max(initial=0.0))


def series_of(
    name: str, group: str, unit: str, time_ns: Int64Array, value: npt.NDArray[np.generic]
) -> Series:
    """A series from samples in any order; of several at one moment the last one given holds."""
    order = np.argsort(time_ns, kind="stable")
    times = time_ns[order]
    last = np.append(times[1:] != times[:-1], True)[: len(times)]
    return Series(name, group, unit, times[last], value[order][last].astype(np.float64))


def sum_of(
    name: str,
    group: str,
    unit: str,
    start_ns: Int64Array,
    end_ns: Int64Array,
    amount: npt.NDArray[np.int64],
) -> Series:
    """The sum of the amounts that are in force: each one from its start to its end."""
    times = np.concatenate((start_ns, end_ns))
    order = np.argsort(times, kind="stable")
    total = np.cumsum(np.concatenate((amount, -amount))[order])
    return series_of(name, group, unit, times[order], total)
