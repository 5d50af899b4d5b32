"""The GPUs of a trace: those that the file describes, and those that it has events for."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import polars as pl

DEVICES: dict[str, pl.DataType | type[pl.DataType]] = {
    "device": pl.Int32,
    "name": pl.String,
    "total_memory_bytes": pl.Int64,
    "multiprocessors": pl.Int64,
    "is_used": pl.Boolean,  # the trace has events on it
    "properties": pl.String,  # all properties in the file, as JSON
}
"""One row per GPU that the file describes or has events for, by number."""


def devices_of(described: object, used: Iterable[int]) -> pl.DataFrame:
    """Returns the GPUs of a trace, with the columns of `DEVICES`.

    Args:
        described: The file's `deviceProperties`; anything but a list of objects says nothing.
    """
    found: dict[int, dict[str, Any]] = {}
    for entry in described if isinstance(described, list) else []:
        number = _integer(entry.get("id")) if isinstance(entry, dict) else None
        if number is not None and abs(number) < 2**31:
            found.setdefault(number, entry)
    in_use = set(used)
    rows = []
    for device in sorted(found.keys() | in_use):
        entry = found.get(device, {})
        rows.append(
            (
                device,
                entry.get("name") if isinstance(entry.get("name"), str) else None,
                _integer(entry.get("totalGlobalMem")),
                _integer(entry.get("numSms")),
                device in in_use,
                json.dumps(entry) if entry else None,
            )
        )
    return pl.DataFrame(rows, schema=DEVICES, orient="row")


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and abs(value) < 2**63 else None
