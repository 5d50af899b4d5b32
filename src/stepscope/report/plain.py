"""Results as plain values, and JSON and CSV of them."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

import orjson
import polars as pl

if TYPE_CHECKING:
    from stepscope.analysis.selection.scope import AnsweredScope


def plain(value: Any) -> Any:
    """A value that JSON can hold; what is no number (NaN, infinity) becomes null."""
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
    """What an answer covers: `steps` null where it is about the whole file."""
    asked = scope.asked
    return {
        "steps": None if asked.steps is None else list(scope.steps),
        "devices": list(scope.devices),
        "events": asked.events.value,
        "counted": scope.events,
        "excluded": dict(scope.excluded),
    }


def json_text(document: Any, default: Callable[[Any], Any] | None = None) -> str:
    """A document as JSON, indented, with a line break at its end.

    Args:
        document: Plain values.
        default: What becomes of a value that is not plain; by default an error.
    """
    return orjson.dumps(document, option=orjson.OPT_INDENT_2, default=default).decode() + "\n"


def frame_to_csv(frame: pl.DataFrame) -> str:
    """A table as CSV, with a row of column names; lists as JSON, numbers to the last digit."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(frame.columns)
    writer.writerows([_csv_cell(item) for item in row] for row in frame.iter_rows())
    return out.getvalue()


def _csv_cell(value: Any) -> Any:
    if isinstance(value, (list, tuple, dict)):
        return orjson.dumps(plain(value)).decode()
    return value


def json_cell(value: object) -> str:
    """A list or a struct as JSON on one line; bytes become hexadecimal."""
    return json.dumps(value, ensure_ascii=False, default=json_scalar)


def json_scalar(value: object) -> str:
    """What JSON has no form of its own for: bytes as hexadecimal, all else as its text."""
    return value.hex() if isinstance(value, bytes) else str(value)
