"""Results as plain values, and as JSON and CSV."""

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

from stepscope.analysis.selection.csv_text import csv_text
from stepscope.run.utf8_json import utf8_json

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


def json_text(document: Any, default: Callable[[Any], Any] | None = None) -> str:
    """A document as indented JSON, with a final newline.

    Args:
        document: Plain values.
        default: Converts values that are not plain; without it they are errors.
    """
    return utf8_json(document, orjson.OPT_INDENT_2, default).decode() + "\n"


def frame_to_csv(frame: pl.DataFrame) -> str:
    """A table as CSV with a header; lists as JSON, numbers in full precision.

    Text is made safe for terminals and spreadsheets (`csv_text`).
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(csv_text, frame.columns))
    writer.writerows([_csv_cell(item) for item in row] for row in frame.iter_rows())
    return out.getvalue()


def _csv_cell(value: Any) -> Any:
    if isinstance(value, (list, tuple, dict)):
        return csv_text(utf8_json(plain(value)).decode())
    return csv_text(value) if isinstance(value, str) else value


def json_cell(value: object) -> str:
    """A list or struct as JSON on one line; bytes become hexadecimal."""
    return json.dumps(value, ensure_ascii=False, default=json_scalar)


def json_scalar(value: object) -> str:
    """A value that JSON has no form for: bytes as hexadecimal, anything else as its text."""
    return value.hex() if isinstance(value, bytes) else str(value)
