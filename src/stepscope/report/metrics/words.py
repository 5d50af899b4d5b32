"""What the reasons for lower clocks are called."""

from __future__ import annotations

from collections.abc import Iterable

_REASON_WORDS = {
    "sw_power_cap": "power",
    "hw_slowdown": "hardware",
    "sw_thermal_slowdown": "heat",
    "hw_thermal_slowdown": "heat",
    "hw_power_brake_slowdown": "power brake",
}


def words_for(reasons: Iterable[str]) -> list[str]:
    """What reasons for lower clocks are called here, each word once, in their order."""
    return list(dict.fromkeys(_REASON_WORDS[reason] for reason in reasons))
