"""Figures within sentences of findings. Figures of their own are `Evidence` with a unit."""

from __future__ import annotations

from stepscope.run.figures import binary_size, significant

__all__ = ("binary_size", "speed")

_SLOW = 0.1
"""Bandwidths below this, in GB/s, are told in MB/s."""


def speed(gigabytes_per_second: float) -> str:
    """A bandwidth in decimal units: 27.7 GB/s, and 16.2 MB/s instead of 0.0162 GB/s."""
    if gigabytes_per_second < _SLOW:
        return f"{significant(gigabytes_per_second * 1000)} MB/s"
    return f"{significant(gigabytes_per_second)} GB/s"
