"""Peaks of known devices: arithmetic per type, and memory bandwidth.

A device that is not in the table is unknown: nothing is guessed from a similar name, and types that
a device has no unit for have no peak.

All figures are for dense matrices (no structured sparsity), at boost clock, per device as the
driver counts devices (a die of an MI250X is one). Where a sheet gives only a figure with sparsity,
half of it stands here. GeForce cards: 16-bit and 8-bit floats with 32-bit accumulation, which
training uses, at half the rate of 16-bit accumulation. docs/devices.md shows the same table.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analysis.selection.names import is_call, names_that
from stepscope.analysis.selection.scope import memoized
from stepscope.trace.arrays.nullable import filled
from stepscope.trace.model import Trace

TYPES = ("float64", "float32", "tf32", "float16", "bfloat16", "float8", "int8")
"""Types, in the order of the figures."""

_A100 = (19.5, 19.5, 156.0, 312.0, 312.0, None, 624.0)
_H100 = (66.9, 66.9, 494.7, 989.4, 989.4, 1978.9, 1978.9)
_H100_PCIE = (51.2, 51.2, 378.0, 756.0, 756.0, 1513.0, 1513.0)
_NVL = (60.0, 60.0, 417.5, 835.5, 835.5, 1671.0, 1671.0)
_H800 = (1.0, 66.9, 494.7, 989.4, 989.4, 1978.9, 1978.9)
_H800_PCIE = (0.8, 51.2, 378.0, 756.0, 756.0, 1513.0, 1513.0)
_MI300X = (163.4, 163.4, 653.7, 1307.4, 1307.4, 2614.9, 2614.9)
_AMD_BY_MEMORY = (
    # Sizes that one product alone has, as the driver reports them, in GiB.
    (185, 200, "AMD Instinct MI300X"),
    (250, 260, "AMD Instinct MI325X"),
)
_PINNED_GB_PER_S = (
    (r"V100|\bT4\b|RTX 20|Quadro RTX|MI50|MI60", 11.0),
    (r"A100|A800|\bA[1-4]0G?\b|\bL(2|4|20|40S?)\b|RTX [34]0|RTX A\d|Ada|MI100|MI2\d\d", 22.0),
    (r"\bG?H(100|200|800|20)\b|\bG?B[123]00\b|RTX 50|MI3\d\d", 45.0),
)
"""Copies from pinned memory over PCI Express of the generations 3, 4 and 5 with 16 lanes: some 10 %
less than large copies reach (an H200 moves 53 GB/s)."""
_AMD = r"AMD|Instinct|Radeon|MI[123]\d\d"


_ROWS: tuple[tuple[str, str, float, tuple[float | None, ...], str], ...] = (
    (
        r"V100.*(SXM2-16|SXM2-32|SXM3)|V100-DGXS|V100-LS",
        "V100 SXM",
        900,
        (7.8, 15.7, None, 125, None, None, None),
        "V100",
    ),
    (
        r"V100-?S?-?PCIE|V100-PCIE|V100-FHHL",
        "V100 PCIe",
        900,
        (7.0, 14.0, None, 112, None, None, None),
        "V100",
    ),
    (r"\bT4\b", "T4", 320, (None, 8.1, None, 65, None, None, 130), "T4"),
    (r"A100.*80GB.*PCI|A100 80GB PCI", "A100 80GB PCIe", 1935, _A100, "A100"),
    (r"A100.*80GB", "A100 80GB SXM", 2039, _A100, "A100"),
    (r"A100", "A100 40GB", 1555, _A100, "A100"),
    (r"A800.*80GB.*PCI|A800 80GB PCI", "A800 80GB PCIe", 1935, _A100, "Export models"),
    (r"A800.*80GB", "A800 80GB SXM", 2039, _A100, "Export models"),
    (r"\bA30\b", "A30", 933, (10.3, 10.3, 82, 165, 165, None, 330), "A30"),
    (r"\bA10G?\b$", "A10", 600, (None, 31.2, 62.5, 125, 125, None, 250), "A10"),
    (r"\bA40\b", "A40", 696, (None, 37.4, 74.8, 149.7, 149.7, None, 299.3), "A40"),
    (r"\bL2$", "L2", 300, (None, 24.1, 48.3, 96.5, 96.5, 193, 193), "Export models"),
    (r"\bL4\b", "L4", 300, (None, 30.3, 60, 121, 121, 242.5, 242.5), "L4"),
    (r"\bL20\b", "L20", 864, (None, 59.8, 59.8, 119.5, 119.5, 239, 239), "Export models"),
    (r"\bL40S\b", "L40S", 864, (None, 91.6, 183, 362, 362, 733, 733), "L40S"),
    (r"\bL40\b", "L40", 864, (None, 90.5, 90.5, 181, 181, 362, 362), "L40"),
    (r"H100 NVL", "H100 NVL", 3938, _NVL, "H100"),
    (r"H100 PCIe", "H100 PCIe", 2039, _H100_PCIE, "H100"),
    (r"H100( 80GB HBM3|.*SXM)", "H100 SXM", 3352, _H100, "H100"),
    (r"H800 PCIe", "H800 PCIe", 2039, _H800_PCIE, "Export models"),
    (r"\bH800\b", "H800 SXM", 3352, _H800, "Export models"),
    (r"H200 NVL", "H200 NVL", 4800, _NVL, "H200"),
    (r"\bH200\b", "H200", 4800, _H100, "H200"),
    (r"GH200 480GB", "GH200", 4000, _H100, "GH200"),
    (r"GH200 144G", "GH200 144GB", 4900, _H100, "GH200"),
    (r"\bH20\b", "H20", 4000, (1, 44, 74, 148, 148, 296, 296), "Export models"),
    (r"\bGB200\b", "GB200", 8000, (40, 80, 1250, 2500, 2500, 5000, 5000), "GB200"),
    (r"\bB200\b", "B200", 7700, (37, 75, 1125, 2250, 2250, 4500, 4500), "HGX B200"),
    (r"RTX 2080 Ti$", "RTX 2080 Ti", 616, (None, 13.4, None, 53.8, None, None, 215.2), "Turing"),
    (r"RTX 3080$", "RTX 3080", 760, (None, 29.8, 29.8, 59.5, 59.5, None, 238), "GA102"),
    (r"RTX 3090$", "RTX 3090", 936, (None, 35.6, 35.6, 71, 71, None, 284), "GA102"),
    (r"RTX 3090 Ti$", "RTX 3090 Ti", 1008, (None, 40, 40, 80, 80, None, 320), "GA102"),
    (r"RTX A5000$", "RTX A5000", 768, (None, 27.8, 55.6, 111.1, 111.1, None, 222.2), "GA102"),
    (r"RTX A6000$", "RTX A6000", 768, (None, 38.7, 77.4, 154.8, 154.8, None, 309.7), "GA102"),
    (r"RTX 4080$", "RTX 4080", 716.8, (None, 48.7, 48.7, 97.5, 97.5, 194.9, 389.9), "Ada"),
    (r"RTX 4090$", "RTX 4090", 1008, (None, 82.6, 82.6, 165.2, 165.2, 330.3, 660.6), "Ada"),
    (
        r"RTX 6000 Ada",
        "RTX 6000 Ada",
        960,
        (None, 91.1, 182.1, 364.2, 364.2, 728.5, 728.5),
        "Ada professional",
    ),
    (
        r"RTX 5080$",
        "RTX 5080",
        960,
        (None, 56.3, 56.3, 112.6, 112.6, 225.1, 450.2),
        "RTX Blackwell",
    ),
    (
        r"RTX 5090$",
        "RTX 5090",
        1792,
        (None, 104.8, 104.8, 209.5, 209.5, 419, 838),
        "RTX Blackwell",
    ),
    (r"MI100\b", "MI100", 1228.8, (11.5, 46.1, None, 184.6, 92.3, None, 184.6), "MI100"),
    (r"MI210\b", "MI210", 1638.4, (45.3, 45.3, None, 181, 181, None, 181), "MI200"),
    (
        r"MI250X\b",
        "MI250X, one die",
        1638.4,
        (47.9, 47.9, None, 191.5, 191.5, None, 191.5),
        "MI200",
    ),
    (r"MI250\b", "MI250, one die", 1638.4, (45.3, 45.3, None, 181, 181, None, 181), "MI200"),
    (
        r"MI300A\b",
        "MI300A",
        5300,
        (122.6, 122.6, 490.3, 980.6, 980.6, 1961.2, 1961.2),
        "MI300",
    ),
    (r"MI300X\b", "MI300X", 5300, _MI300X, "MI300"),
    (r"MI325X\b", "MI325X", 6000, _MI300X, "MI300"),
    (r"MI350X\b", "MI350X", 8000, (72.1, 144.2, None, 2309.6, 2309.6, 4614, 4614), "MI350"),
    (r"MI355X\b", "MI355X", 8000, (78.6, 157.3, None, 2516.6, 2516.6, 5033, 5033), "MI350"),
)
"""The devices with the fields of `DevicePeaks`, the more special patterns first."""


@dataclass(frozen=True)
class DevicePeaks:
    """What a device can do at best.

    Attributes:
        pattern: What the driver's name of it looks like.
        figures: Peak in 10^12 floating-point (or integer) operations per second, in the order of
            `TYPES`; None: it has no unit for the type. Those of `float64` and `float32` are of the
            vector units, or of matrix units where matrix products of that type use them by
            themselves.
        sheet: Where the figures come from: docs/devices.md lists the sheets.
        memory_gb_per_s: Peak of the memory's bandwidth, in 10^9 bytes per second.
    """

    pattern: str
    name: str
    memory_gb_per_s: float
    figures: tuple[float | None, ...]
    sheet: str

    @property
    def teraflops(self) -> dict[str, float]:
        """The peaks by type, of the types that it has a unit for."""
        found = zip(TYPES, self.figures, strict=True)
        return {type_name: value for type_name, value in found if value is not None}

    def peak(self, type_name: str) -> float | None:
        """Operations per second for a type; None where the device has no unit for it."""
        value = self.teraflops.get(type_name)
        return None if value is None else value * 1e12


KNOWN = tuple(DevicePeaks(*row) for row in _ROWS)


def pinned_gb_per_s(name: str | None) -> float | None:
    """How fast large copies from pinned host memory are, at least; None: not known."""
    speeds = (speed for pattern, speed in _PINNED_GB_PER_S if re.search(pattern, name or ""))
    return next(speeds, None)


def peaks_of_name(name: str | None) -> DevicePeaks | None:
    """The peaks of a device by the driver's name for it; None: the device is not known."""
    return next((one for one in KNOWN if name is not None and re.search(one.pattern, name)), None)


def peaks_of(trace: Trace) -> dict[int, DevicePeaks | None]:
    """The peaks of each device that a trace has events of.

    The header may number devices differently from the events (ROCm does, where only some of the
    devices are visible): where all devices in the header are of one kind, a device without a
    description is taken for one of them. An A100 without a size in its name is identified by its
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


def is_amd(trace: Trace) -> bool:
    """Whether the devices are AMD's: by their names, else by the names of the calls."""
    names = [name for name in described_devices(trace)["name"] if name]
    if names:
        return all(re.search(_AMD, name) for name in names)
    return bool(names_that(trace, is_call() & pl.col("name").str.starts_with("hip")).any())


def compute_capability(trace: Trace) -> int | None:
    """Major compute capability of the first NVIDIA device in use; None: unknown or another's."""
    for name, properties in described_devices(trace)["name", "properties"].iter_rows():
        major = json.loads(properties).get("computeMajor")
        if isinstance(major, int) and not re.search(_AMD, name or ""):
            return major
    return None


@memoized
def described_devices(trace: Trace) -> pl.DataFrame:
    """The rows of `Trace.devices` in use that the header describes.

    Where it numbers devices differently from the events and describes none of those in use, all
    that it describes.
    """
    described = trace.devices.filter(trace.devices["properties"].is_not_null())
    used = described.filter(described["is_used"])
    return described if used.is_empty() else used
