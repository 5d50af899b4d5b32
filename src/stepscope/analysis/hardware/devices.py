"""Peaks of known devices: arithmetic per type, and memory bandwidth.

All figures are the vendors' own, from their public data sheets, for dense matrices (no structured
sparsity), at boost clock, per device as the driver counts devices (a die of an MI250X is one).
Where a sheet gives only a figure with sparsity, half of it stands here. A device that is not in the
table is unknown: nothing is guessed from a similar name. Types that a device has no unit for have
no peak.

Sheets: NVIDIA Tesla V100, T4, A100, A10, A30, A40, L4, L40, L40S, H100, H200, GH200, H20, B200 and
the Ampere and Ada architecture papers for RTX cards; AMD Instinct MI100, MI210, MI250, MI250X,
MI300A, MI300X, MI325X, MI350X, MI355X.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from stepscope.trace.model import Trace


@dataclass(frozen=True)
class DevicePeaks:
    """What a device can do at best.

    Attributes:
        name: What it is called here.
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


def _peaks(
    name: str,
    bandwidth: float,
    *,
    f64: float | None = None,
    f32: float | None = None,
    tf32: float | None = None,
    f16: float | None = None,
    bf16: float | None = None,
    f8: float | None = None,
    i8: float | None = None,
) -> DevicePeaks:
    values = {
        "float64": f64,
        "float32": f32,
        "tf32": tf32,
        "float16": f16,
        "bfloat16": bf16,
        "float8": f8,
        "int8": i8,
    }
    return DevicePeaks(
        name, {key: value for key, value in values.items() if value is not None}, bandwidth
    )


_A100 = {"f64": 19.5, "f32": 19.5, "tf32": 156.0, "f16": 312.0, "bf16": 312.0, "i8": 624.0}
_H100 = {
    "f64": 66.9,
    "f32": 66.9,
    "tf32": 494.7,
    "f16": 989.4,
    "bf16": 989.4,
    "f8": 1978.9,
    "i8": 1978.9,
}
_MI300X = {
    "f64": 163.4,
    "f32": 163.4,
    "tf32": 653.7,
    "f16": 1307.4,
    "bf16": 1307.4,
    "f8": 2614.9,
    "i8": 2614.9,
}

KNOWN: tuple[tuple[str, DevicePeaks], ...] = (
    (
        r"V100.*(SXM2-16|SXM2-32|SXM3)|V100-DGXS|V100-LS",
        _peaks("V100 SXM", 900, f64=7.8, f32=15.7, f16=125),
    ),
    (r"V100-?S?-?PCIE|V100-PCIE|V100-FHHL", _peaks("V100 PCIe", 900, f64=7.0, f32=14.0, f16=112)),
    (r"\bT4\b", _peaks("T4", 320, f32=8.1, f16=65, i8=130)),
    (r"A100.*80GB.*PCI|A100 80GB PCI", _peaks("A100 80GB PCIe", 1935, **_A100)),
    (r"A100.*80GB", _peaks("A100 80GB SXM", 2039, **_A100)),
    (r"A100", _peaks("A100 40GB", 1555, **_A100)),
    (
        r"\bA30\b",
        _peaks("A30", 933, f64=10.3, f32=10.3, tf32=82, f16=165, bf16=165, i8=330),
    ),
    (r"\bA10G?\b$", _peaks("A10", 600, f32=31.2, tf32=62.5, f16=125, bf16=125, i8=250)),
    (r"\bA40\b", _peaks("A40", 696, f32=37.4, tf32=74.8, f16=149.7, bf16=149.7, i8=299.3)),
    (r"\bL4\b", _peaks("L4", 300, f32=30.3, tf32=60, f16=121, bf16=121, f8=242.5, i8=242.5)),
    (
        r"\bL40S\b",
        _peaks("L40S", 864, f32=91.6, tf32=183, f16=362, bf16=362, f8=733, i8=733),
    ),
    (
        r"\bL40\b",
        _peaks("L40", 864, f32=90.5, tf32=90.5, f16=181, bf16=181, f8=362, i8=362),
    ),
    (
        r"H100 NVL",
        _peaks(
            "H100 NVL", 3938, f64=60, f32=60, tf32=417.5, f16=835.5, bf16=835.5, f8=1671, i8=1671
        ),
    ),
    (
        r"H100 PCIe",
        _peaks(
            "H100 PCIe", 2039, f64=51.2, f32=51.2, tf32=378, f16=756, bf16=756, f8=1513, i8=1513
        ),
    ),
    (r"H100( 80GB HBM3|.*SXM)", _peaks("H100 SXM", 3352, **_H100)),
    (
        r"H200 NVL",
        _peaks(
            "H200 NVL", 4800, f64=60, f32=60, tf32=417.5, f16=835.5, bf16=835.5, f8=1671, i8=1671
        ),
    ),
    (r"\bH200\b", _peaks("H200", 4800, **_H100)),
    (r"GH200 480GB", _peaks("GH200", 4000, **_H100)),
    (
        r"\bH20\b",
        _peaks("H20", 4000, f64=1, f32=44, tf32=74, f16=148, bf16=148, f8=296, i8=296),
    ),
    (
        r"\bB200\b",
        _peaks("B200", 8000, f64=40, f32=80, tf32=1125, f16=2250, bf16=2250, f8=4500, i8=4500),
    ),
    (
        r"MI100\b",
        _peaks("MI100", 1228.8, f64=11.5, f32=46.1, f16=184.6, bf16=92.3, i8=184.6),
    ),
    (r"MI210\b", _peaks("MI210", 1638.4, f64=45.3, f32=45.3, f16=181, bf16=181, i8=181)),
    (
        r"MI250X\b",
        _peaks("MI250X, one die", 1638.4, f64=47.9, f32=47.9, f16=191.5, bf16=191.5, i8=191.5),
    ),
    (
        r"MI250\b",
        _peaks("MI250, one die", 1638.4, f64=45.3, f32=45.3, f16=181, bf16=181, i8=181),
    ),
    (
        r"MI300A\b",
        _peaks(
            "MI300A",
            5300,
            f64=122.6,
            f32=122.6,
            tf32=490.3,
            f16=980.6,
            bf16=980.6,
            f8=1961.2,
            i8=1961.2,
        ),
    ),
    (r"MI300X\b", _peaks("MI300X", 5300, **_MI300X)),
    (r"MI325X\b", _peaks("MI325X", 6000, **_MI300X)),
    (
        r"MI350X\b",
        _peaks("MI350X", 8000, f64=72.1, f32=144.2, f16=2309.6, bf16=2309.6, f8=4614, i8=4614),
    ),
    (
        r"MI355X\b",
        _peaks("MI355X", 8000, f64=78.6, f32=157.3, f16=2516.6, bf16=2516.6, f8=5033, i8=5033),
    ),
)
"""Patterns of the driver's name of a device, the more special ones first."""


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

    An A100 without a size in its name is told apart by its memory.
    """
    found: dict[int, DevicePeaks | None] = {}
    for device, name, memory, used in trace.devices.select(
        "device", "name", "total_memory_bytes", "is_used"
    ).iter_rows():
        if not used:
            continue
        is_large = name is not None and "A100" in name and (memory or 0) > 60 << 30
        found[device] = peaks_of_name(f"{name} 80GB" if is_large and "80GB" not in name else name)
    return found
