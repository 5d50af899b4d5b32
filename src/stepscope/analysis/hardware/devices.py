"""Peaks of known devices: arithmetic per type, and memory bandwidth.

`peak_table` has the figures and where they come from. A device that is not in the table is unknown:
nothing is guessed from a similar name, and types that a device has no unit for have no peak.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analysis.hardware.peak_table import ROWS, TYPES
from stepscope.analysis.hardware.vendor import is_amd
from stepscope.trace.arrays.nullable import filled
from stepscope.trace.model import Trace

_AMD_BY_MEMORY = (
    # Sizes that one product alone has, as the driver reports them, in GiB.
    (185, 200, "AMD Instinct MI300X"),
    (250, 260, "AMD Instinct MI325X"),
)


@dataclass(frozen=True)
class DevicePeaks:
    """What a device can do at best.

    Attributes:
        teraflops: Peak in 10^12 floating-point (or integer) operations per second by type:
            float64, float32, tf32, float16, bfloat16, float8, int8. `float64` and `float32` are
            those of the vector units, or of matrix units where matrix products of that type use
            them by themselves.
        memory_gb_per_s: Peak of the memory's bandwidth, in 10^9 bytes per second.
    """

    name: str
    teraflops: dict[str, float]
    memory_gb_per_s: float

    def peak(self, type_name: str) -> float | None:
        """Operations per second for a type; None where the device has no unit for it."""
        value = self.teraflops.get(type_name)
        return None if value is None else value * 1e12


KNOWN: tuple[tuple[str, DevicePeaks], ...] = tuple(
    (
        row.pattern,
        DevicePeaks(
            row.name,
            {
                type_name: value
                for type_name, value in zip(TYPES, row.teraflops, strict=True)
                if value is not None
            },
            row.memory_gb_per_s,
        ),
    )
    for row in ROWS
)
"""Patterns of the driver's name of a device, the more special ones first."""


_PINNED_GB_PER_S = (
    (r"V100|\bT4\b|RTX 20|Quadro RTX|MI50|MI60", 11.0),
    (r"A100|A800|\bA[1-4]0G?\b|\bL(2|4|20|40S?)\b|RTX [34]0|RTX A\d|Ada|MI100|MI2\d\d", 22.0),
    (r"\bG?H(100|200|800|20)\b|\bG?B[123]00\b|RTX 50|MI3\d\d", 45.0),
)
"""Copies from pinned memory over PCI Express of the generations 3, 4 and 5 with 16 lanes: some 10 %
less than large copies reach (an H200 moves 53 GB/s)."""


def pinned_gb_per_s(name: str | None) -> float | None:
    """How fast large copies from pinned host memory are, at least; None: not known."""
    for pattern, speed in _PINNED_GB_PER_S:
        if name is not None and re.search(pattern, name):
            return speed
    return None


def peaks_of_name(name: str | None) -> DevicePeaks | None:
    """The peaks of a device by the driver's name for it; None: the device is not known."""
    if name is None:
        return None
    for pattern, peaks in KNOWN:
        if re.search(pattern, name):
            return peaks
    return None


def peaks_of(trace: Trace) -> dict[int, DevicePeaks | None]:
    """The peaks of each device that a trace has events of.

    The header may number devices differently from the events (ROCm does, where only some of the
    devices are visible): where all devices in the header are of one kind, a device without a
    description is taken for one of them. An A100 without a size in its name is told apart by its
    memory, and an AMD device without a product name by a size that only one product has.
    """
    devices = trace.devices["device", "name", "total_memory_bytes", "is_used"]
    described = {
        (name, memory) for _, name, memory, _ in devices.iter_rows() if name or memory is not None
    }
    alike = next(iter(described)) if len(described) == 1 else (None, None)
    found: dict[int, DevicePeaks | None] = {}
    for device, name, memory, used in devices.iter_rows():
        if used:
            known = (name, memory) if name or memory is not None else alike
            found[device] = _peaks_of_device(trace, *known)
    return found


def memory_speeds(trace: Trace, devices: pl.Series) -> npt.NDArray[np.float64]:
    """Peak of the memory's bandwidth in bytes per ns, per row; NaN: the device is not known."""
    speeds = {device: peak.memory_gb_per_s for device, peak in peaks_of(trace).items() if peak}
    found = devices.cast(pl.Int64).replace_strict(speeds, default=None, return_dtype=pl.Float64)
    speeds_of_rows: npt.NDArray[np.float64] = filled(found, np.nan)
    return speeds_of_rows


def _peaks_of_device(trace: Trace, name: str | None, memory: int | None) -> DevicePeaks | None:
    gibibytes = (memory or 0) / (1 << 30)
    if name is not None and "A100" in name and "80GB" not in name and gibibytes > 60:
        name = f"{name} 80GB"
    known = peaks_of_name(name)
    if known is None and is_amd(trace):
        for least, most, product in _AMD_BY_MEMORY:
            if least <= gibibytes <= most:
                return peaks_of_name(product)
    return known
