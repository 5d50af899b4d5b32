"""Columns and cells for people. The end of a column's name tells its unit.

Times and sizes get convenient units. Moments are relative to the first event of the trace.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from stepscope.analysis.selection.partition import cause_label
from stepscope.report import units
from stepscope.terminal.plain_text import printable

_FLOPS = re.compile(r"(^|_)flops(_per_s)?$")
_UNITS = {"_gb_per_s": " GB/s", "teraflops_per_s": "TFLOP/s"}
"""Ends of names whose unit is part of the label, because the numbers come without it."""
_SUFFIXES: tuple[tuple[str, Callable[[Any], str]], ...] = (
    ("_ns", units.duration),
    ("_bytes", units.size),
    ("_share", units.percent),
)
_ABBREVIATIONS = {"comm": "communication", "memcpy": "copies"}
"""Words for people instead of those in names of columns."""
IDENTITIES = frozenset(
    {
        "event", "step", "device", "stream", "rank", "launch", "op", "ended_by", "lane_id", "gap",
        "address", "allocation", "pool", "since_event",
    }
)  # fmt: skip
"""Numbers that identify things: written without separators."""
CAUSES = ("cause", "without")
"""Columns of causes, which are written in words."""
_HOST = -1
"""The device whose memory is the host's."""


def label(name: str) -> str:
    """The heading of a column, without its unit: "exposed_comm_ns" is "exposed communication"."""
    if _FLOPS.search(name):
        name = name.removesuffix("_per_s")
    for ending, unit in _UNITS.items():
        if name.endswith(ending):
            return name.removesuffix(ending).replace("_", " ") + unit
    for suffix, _ in _SUFFIXES:
        if name.endswith(suffix) and name != suffix[1:]:
            name = name.removesuffix(suffix) + ("" if suffix != "_share" else " %")
            break
    return " ".join(_ABBREVIATIONS.get(word, word) for word in name.split("_") if word)


def headings(columns: Sequence[str], *, is_short: bool = False) -> dict[str, str]:
    """The label of each column; a time whose label would equal another one gets "time" added.

    Args:
        is_short: Whether to shorten what is common, for a narrow terminal.
    """
    labels = {name: label(name) for name in columns}
    taken = list(labels.values())
    labels = {
        name: f"{text} time" if name.endswith("_ns") and taken.count(text) > 1 else text
        for name, text in labels.items()
    }
    if is_short:
        return {name: text.replace("communication", "comm") for name, text in labels.items()}
    return labels


def shown(name: str, value: Any, origin_ns: int = 0) -> str:
    """A cell for people; the column's name tells the unit."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Enum):
        return printable(str(value.value))
    if isinstance(value, (list, tuple)):
        return ", ".join(shown("", item) for item in value) if value else "–"
    if isinstance(value, dict):
        return ", ".join(
            f"{printable(str(key))} {shown(str(key), item)}" for key, item in value.items()
        )
    if not isinstance(value, (int, float)):
        return printable(cause_label(str(value)) if name in CAUSES else str(value))
    if isinstance(value, float) and not math.isfinite(value):
        return "–"
    if is_moment(name):
        return f"+{units.duration(value - origin_ns)}" if value >= origin_ns else str(value)
    for suffix, write in _SUFFIXES:
        if name.endswith(suffix) or name == suffix[1:]:
            return write(value)
    if _FLOPS.search(name):
        return units.flops(value) + ("/s" if name.endswith("_per_s") else "")
    if name == "device" and value == _HOST:
        return "host"
    if name in IDENTITIES or name.endswith("_id"):
        return str(value)
    return units.count(value)


def column_shown(name: str, values: Sequence[Any], origin_ns: int = 0) -> list[str]:
    """The cells of a column for people: nothing is a dash, unless that is already the unknown."""
    is_amount = any(name.endswith(suffix) for suffix, _ in _SUFFIXES) and not is_moment(name)
    if is_amount and (not any(values) or None not in values):
        return [shown(name, value, origin_ns) if value else "–" for value in values]
    return [shown(name, value, origin_ns) for value in values]


def is_moment(name: str) -> bool:
    """Whether a column holds moments, not durations."""
    return name in {"start_ns", "end_ns", "time_ns"} or name.endswith(
        ("_start_ns", "_end_ns", "_time_ns")
    )
