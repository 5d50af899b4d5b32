"""A snapshot as the rest of the package receives it: tables, and what the allocator was set to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

EXACT_SIZES = "stepscope_exact_sizes"
"""A setting of histories without a caching allocator: nothing is rounded."""


@dataclass(frozen=True)
class Snapshot:
    """State and history of the caching allocator. Columns: `stepscope.memory.schema`.

    Attributes:
        path: Where it was read from, for messages.
        events: The history, one row per event; read when it is collected.
        segments: What the allocator had reserved when the snapshot was taken.
        blocks: What the segments were divided into.
        frames: Distinct frames of all stacks.
        stacks: Distinct stacks.
        pools: The default pool and the private ones.
        texts: Texts that the program attached to allocations.
        annotations: Beginnings and ends of the program's own ranges.
        problems: What was left out or looks wrong.
        settings: What the file says of the allocator's settings, as it says it.
        store: The directory of Parquet files that the tables come from; None: they are in memory.
    """

    path: str
    events: pl.LazyFrame
    segments: pl.DataFrame
    blocks: pl.DataFrame
    frames: pl.DataFrame
    stacks: pl.DataFrame
    pools: pl.DataFrame
    texts: pl.DataFrame
    annotations: pl.DataFrame
    problems: pl.DataFrame
    settings: Mapping[str, Any] = field(default_factory=dict)
    store: Path | None = None
