"""The census: which storages held what, as the training itself saw it.

While it records, a training can note at step boundaries where its parameters, gradients and so on
lie. These notes stand beside the snapshot, in `NAME.census.jsonl` for a snapshot `NAME`, one JSON
object to a line, appended to, so that a kill costs the last line at most:

    {"census": 1, "clock": "unix_ns"}
    {"names": ["layers.0.weight", "layers.0.bias"]}
    {"kind": "parameter", "device": 0, "time_ns": 1759252584000000000, "step": 3,
     "addresses": [140000000000512, 140000000001024], "bytes": [400, 40], "names": [0, 1]}

The first line names the format's version and the clock. A line of `names` adds to the table of
names, which the later lines refer to by number, from 0. Every other line is a sighting: at that
moment the storages that begin at these addresses held values of that kind. Where the entries have
moments of their own, as saved activations do, `times_ns` has one for each in place of `time_ns`.
`bytes` are the sizes of the storages; `step`, `names` and each single name (as null) may be
missing.

A sighting says whose the block is that was live at its address at its moment (`join_census`).
Addresses are used again, so neither alone says anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stepscope.errors import UnreadableInputError
from stepscope.memory.categories.kinds import CATEGORY, MemoryCategory
from stepscope.memory.replay.arrays import Int64Array, last_before, whole
from stepscope.memory.schema import Types
from stepscope.run.files import open_regular
from stepscope.run.side_json import parse_json

SUFFIX = ".census.jsonl"
VERSION = 1
CLOCK_TOLERANCE_NS = 2_000_000
"""How far a sighting's clock and the snapshot's may be apart: torch converts the processor's."""
_LONGEST_LINE = 256 * 1024 * 1024

SIGHTINGS: Types = {
    "kind": CATEGORY,
    "device": pl.Int32,
    "time_ns": pl.Int64,
    "step": pl.Int64,
    "address": pl.Int64,
    "bytes": pl.Int64,  # of the storage; null: not said
    "name": pl.String,
}
"""One row per storage and moment."""

_PRECEDENCE = (
    MemoryCategory.PARAMETER,
    MemoryCategory.BUFFER,
    MemoryCategory.OPTIMIZER_STATE,
    MemoryCategory.GRADIENT,
    MemoryCategory.INPUT,
    MemoryCategory.COMMUNICATION,
    MemoryCategory.CACHE,
    MemoryCategory.ACTIVATION,
    MemoryCategory.WORKSPACE,
    MemoryCategory.TEMPORARY,
)
"""A block that was seen as several kinds is the first of these: a parameter that is saved for the
backward pass is a parameter."""


@dataclass(frozen=True)
class Census:
    """A census.

    Attributes:
        sightings: With the columns of `SIGHTINGS`.
        skipped_lines: Lines that were damaged or not understood.
    """

    sightings: pl.DataFrame
    skipped_lines: int


def census_path(snapshot: Path) -> Path:
    """Where the census of a snapshot stands."""
    return snapshot.with_name(snapshot.name + SUFFIX)


def read_census(path: Path) -> Census:
    """Reads a census; damaged lines are skipped and counted.

    Raises:
        UnreadableInputError: It cannot be read, or is no census of a known version.
    """
    try:
        with open_regular(path) as opened:
            return parse_census(iter(lambda: opened.readline(_LONGEST_LINE), b""), str(path))
    except OSError as error:
        raise UnreadableInputError(f"{path}: cannot be read: {error.strerror}") from error


def parse_census(lines: Iterable[bytes], name: str) -> Census:
    """A census from its lines.

    Raises:
        UnreadableInputError: It is no census of a known version.
    """
    names: list[str | None] = []
    frames: list[pl.DataFrame] = []
    skipped = 0
    for number, line in enumerate(lines):
        record = _record(line)
        if not number:
            version = record.get("census")
            if version != VERSION:
                what = "no census" if version is None else f"a census of version {version!r}"
                raise UnreadableInputError(f"{name}: {what}; version {VERSION} can be read")
            continue
        added = record.get("names")
        if "kind" not in record and isinstance(added, list):
            names += (text if isinstance(text, str) else None for text in added)
            continue
        sighting = _sighting(record, names)
        if sighting is None:
            skipped += 1
        else:
            frames.append(sighting)
    table = pl.concat(frames) if frames else pl.DataFrame(schema=SIGHTINGS)
    return Census(table, skipped)


def _record(line: bytes) -> dict[str, Any]:
    try:
        value = parse_json(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _sighting(record: dict[str, Any], names: list[str | None]) -> pl.DataFrame | None:
    addresses, times = record.get("addresses"), record.get("times_ns")
    if not isinstance(addresses, list) or record.get("kind") not in CATEGORY.categories.to_list():
        return None
    count = len(addresses)
    if times is None:
        times = [record.get("time_ns")] * count
    sizes = record.get("bytes") or [None] * count
    numbers = record.get("names") or [None] * count
    columns = [times, addresses, sizes, numbers]
    if not all(isinstance(column, list) and len(column) == count for column in columns):
        return None
    step, device = record.get("step"), record.get("device")
    try:
        return pl.DataFrame(
            {
                "kind": [record["kind"]] * count,
                "device": [device] * count,
                "time_ns": times,
                "step": [step] * count,
                "address": addresses,
                "bytes": sizes,
                "name": [_name(number, names) for number in numbers],
            },
            schema=SIGHTINGS,
        )
    except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError):
        return None


def _name(number: Any, names: list[str | None]) -> str | None:
    is_known = isinstance(number, int) and 0 <= number < len(names)
    return names[number] if is_known else None


@dataclass(frozen=True)
class Joined:
    """A census, joined to allocations.

    Attributes:
        allocations: allocation, kind, name: one row for each allocation that was seen.
        unmatched: Sightings at whose address nothing of their size was live at their moment.
    """

    allocations: pl.DataFrame
    unmatched: int


def join_census(census: Census, allocations: pl.DataFrame) -> Joined:
    """Finds the allocation behind each sighting: what is live there then, and large enough."""
    seen = census.sightings.filter(
        pl.col("time_ns").is_not_null() & pl.col("address").is_not_null()
    )
    lives = allocations.sort("device", "address", "start_ns", nulls_last=False)
    group, known_group = _groups(seen, lives)
    begins = lives["start_ns"].fill_null(-(2**62))
    ends, sizes = lives["free_ns"].fill_null(2**62).to_numpy(), lives["requested_bytes"].to_numpy()
    times, wanted = seen["time_ns"].to_numpy(), seen["bytes"].fill_null(0).to_numpy()
    has_time = ~(lives["start_ns"].is_null() & lives["start_event"].is_not_null()).to_numpy()

    def live_at(moment: Int64Array, slack: int) -> Int64Array:
        rows = last_before(group, pl.Series(moment), known_group, begins)
        is_good = (
            (rows >= 0) & (times - slack < ends[rows]) & (wanted <= sizes[rows]) & has_time[rows]
        )
        return np.where(is_good, rows, -1)

    if lives.is_empty():
        rows = np.full(len(seen), -1, np.int64)
    else:
        rows = live_at(times, 0)
        # Its neighbours in time, where the clocks differ by a little.
        for moment in (times - CLOCK_TOLERANCE_NS, times + CLOCK_TOLERANCE_NS):
            rows = np.where(rows >= 0, rows, live_at(moment, CLOCK_TOLERANCE_NS))
    matched = seen.with_columns(
        allocation=lives["allocation"].gather(pl.Series(np.maximum(rows, 0)))
        if len(lives)
        else pl.lit(0),
        is_matched=pl.Series(rows >= 0),
        rank=pl.col("kind").replace_strict(
            {kind.value: place for place, kind in enumerate(_PRECEDENCE)},
            default=len(_PRECEDENCE),
            return_dtype=pl.Int8,
        ),
    )
    found = (
        matched.filter("is_matched")
        .sort("allocation", "rank", "time_ns", maintain_order=True)
        .group_by("allocation", maintain_order=True)
        .agg(pl.col("kind").first(), pl.col("name").drop_nulls().first())
    )
    return Joined(found, len(census.sightings) - int(matched["is_matched"].sum()))


def _groups(seen: pl.DataFrame, lives: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
    """A number for each pair of device and address, the same in both tables."""
    both = pl.concat([t.select("device", "address") for t in (seen, lives)])
    devices, addresses = whole(both["device"]), whole(both["address"])
    order = np.lexsort((addresses, devices))
    is_new = np.ones(len(order), np.int64)
    is_new[1:] = (np.diff(addresses[order]) != 0) | (np.diff(devices[order]) != 0)
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(is_new)
    return pl.Series(numbers[: len(seen)]), pl.Series(numbers[len(seen) :])
