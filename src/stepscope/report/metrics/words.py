"""Words for the reasons for lower clocks."""

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
    """The words for reasons for lower clocks, in order and without duplicates."""
    return list(dict.fromkeys(_REASON_WORDS[reason] for reason in reasons))
