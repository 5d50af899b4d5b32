"""Results as plain values, which JSON can hold."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

import polars as pl

if TYPE_CHECKING:
    from stepscope.analysis.selection.scope import AnsweredScope


def plain(value: Any) -> Any:
    """A value that JSON can hold; NaN and infinity become null."""
    if isinstance(value, pl.DataFrame):
        return [
            {name: plain(item) for name, item in row.items()} for row in value.iter_rows(named=True)
        ]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return value


def scope_to_dict(scope: AnsweredScope) -> dict[str, Any]:
    """What an answer covers; `steps` is null for the whole file."""
    asked = scope.asked
    both = scope.recorded
    steps = {}
    if both is not None:
        steps = {"window_step_ns": both.window_step_ns, "run_step_ns": both.run_step_ns}
    return {
        "steps": None if asked.steps is None else list(scope.steps),
        "devices": list(scope.devices),
        "events": asked.events.value,
        "counted": scope.events,
        "excluded": dict(scope.excluded),
        **steps,
    }


def mapped(value: Any, change: Callable[[str], str]) -> Any:
    """A plain value with each of its texts changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: mapped(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [mapped(item, change) for item in value]
    return value
