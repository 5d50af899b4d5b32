"""Figures within sentences of findings. Figures of their own are `Evidence` with a unit."""

from __future__ import annotations

from stepscope.run.figures import significant

_SIZES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_SLOW = 0.1
"""Bandwidths below this, in GB/s, are told in MB/s."""


def in_binary_unit(count_bytes: float) -> tuple[float, str]:
    """A number of bytes in the largest binary unit that fits, and that unit."""
    for step, unit in _SIZES:
        # 1,023.9 KiB would round to 1,024 KiB: the next unit is used.
        if abs(count_bytes) >= step * 0.9995:
            return count_bytes / step, unit
    return round(count_bytes), "B"


def binary_size(count_bytes: float) -> str:
    """Bytes in binary units: 1.67 GiB, not 1,710 MiB."""
    number, unit = in_binary_unit(count_bytes)
    return f"{significant(number)} {unit}"


def speed(gigabytes_per_second: float) -> str:
    """A bandwidth in decimal units: 27.7 GB/s, and 16.2 MB/s instead of 0.0162 GB/s."""
    if gigabytes_per_second < _SLOW:
        return f"{significant(gigabytes_per_second * 1000)} MB/s"
    return f"{significant(gigabytes_per_second)} GB/s"
