"""How busy other programs keep the CPUs, asked while no process of the trials runs."""

from __future__ import annotations

import psutil

_MOMENT_S = 0.3
"""Long enough for thirty ticks of each CPU's clock, and short beside a trial."""


def busy_share() -> float | None:
    """The share of all CPUs' time, 0 to 1, that is used in a moment; None if unknown.

    This process sleeps meanwhile.
    """
    try:
        return float(psutil.cpu_percent(interval=_MOMENT_S)) / 100
    except (OSError, psutil.Error, NotImplementedError):
        return None
