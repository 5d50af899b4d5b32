"""When one rank came to each of its collectives: all that comparing ranks needs of its trace.

A rank is read where its trace lies, and its arrivals travel to where the ranks are compared: a few
bytes per collective, without the trace.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from stepscope.analysis.calls.collectives import (
    read_collectives,
    read_host_collectives,
    world_size,
)
from stepscope.analysis.selection.gpu_work import OTHER_STEPS, gpu_work
from stepscope.analysis.selection.scope import AnsweredScope, Scope
from stepscope.trace.model import Trace

MOST_PER_STEP = 4096
"""Collectives of one process group that are kept of a step; further ones are counted."""
_NULL = np.iinfo(np.int64).min
_TOO_MANY = "collectives beyond the first of a process group in a step"

ARRIVED: dict[str, pl.DataType | type[pl.DataType]] = {
    "rank": pl.Int64,
    "event": pl.Int64,  # in the rank's trace
    "step": pl.Int32,
    "kind": pl.String,
    "group": pl.String,  # name and ranks of the process group
    "group_size": pl.Int64,
    "sequence": pl.Int64,  # the recorder's own number within the group
    "message_bytes": pl.Int64,
    "start_ns": pl.Int64,  # on the rank's own clock, Unix time where the trace has a base
    "dur_ns": pl.Int64,
}
"""One row per collective of a rank, in order of start."""

_NUMBERS = ("event", "step", "group_size", "sequence", "message_bytes", "start_ns", "dur_ns")
_TEXTS = ("kind", "group")


@dataclass(frozen=True)
class RankArrivals:
    """The collectives of one rank, small enough to be sent.

    Attributes:
        rank: The rank.
        world_size: Ranks of its job, as its trace tells it; None: it does not.
        asked: Which of its steps, devices and GPU events were read.
        devices: Its GPUs.
        events: Number of its GPU events by step; None stands for those of no step.
        excluded: GPU events that do not count, and collectives that were not kept, by reason.
        texts: The distinct texts of each of `kind` and `group`.
        packed: The columns of `ARRIVED`, compressed.
    """

    rank: int
    world_size: int | None
    asked: Scope
    devices: tuple[int, ...]
    events: tuple[tuple[int | None, int], ...]
    excluded: tuple[tuple[str, int], ...]
    texts: tuple[tuple[str | None, ...], ...]
    packed: bytes

    def table(self, steps: Sequence[int] | None = None) -> pl.DataFrame:
        """The collectives of some steps, by default of all: columns `ARRIVED`."""
        columns = np.frombuffer(zlib.decompress(self.packed), np.int64)
        columns = np.cumsum(columns.reshape(len(_NUMBERS) + len(_TEXTS), -1), axis=1)
        whole = dict(zip((*_NUMBERS, *_TEXTS), columns, strict=True))
        table = pl.DataFrame({name: whole[name] for name in _NUMBERS}).select(
            pl.when(pl.all() != _NULL).then(pl.all())
        )
        named = [
            pl.Series(name, values, dtype=pl.String).gather(whole[name])
            for name, values in zip(_TEXTS, self.texts, strict=True)
        ]
        table = table.with_columns(*named, rank=pl.lit(self.rank, pl.Int64)).select(
            pl.col(name).cast(dtype) for name, dtype in ARRIVED.items()
        )
        return table if steps is None else table.filter(pl.col("step").is_in(list(steps)))

    def answered(self, steps: tuple[int, ...] | None = None) -> AnsweredScope:
        """What the rank's part of an answer is about, and what it leaves out.

        Args:
            steps: Steps that the answer is about; by default those that were read.
        """
        asked = self.asked if steps is None else replace(self.asked, steps=steps)
        counted = dict(self.events)
        covered = tuple(sorted(step for step in counted if step is not None))
        total = mine = sum(counted.values())
        if asked.steps is not None:
            covered = tuple(step for step in covered if step in set(asked.steps))
            mine = sum(counted[step] for step in covered)
        return AnsweredScope(asked, covered, self.devices, mine).leaving_out(
            {**dict(self.excluded), OTHER_STEPS: total - mine}
        )


def read_arrivals(
    rank: int, trace: Trace, scope: Scope | None = None, most_per_step: int = MOST_PER_STEP
) -> RankArrivals:
    """Read a rank's collectives.

    Args:
        rank: Its number.
        trace: Its trace.
        scope: Steps, devices and events that count.
        most_per_step: Collectives to keep of each process group in a step, the first ones.

    Raises:
        UsageError: The scope names steps that the trace does not have.
    """
    work = gpu_work(trace, scope)
    # Groups of different ranks may go by one name: name and ranks together tell them apart.
    found = read_collectives(trace, work.members)
    if found.is_empty():
        found = read_host_collectives(trace, work.answered.asked)
    found = found.with_columns(
        pl.lit(rank, pl.Int64).alias("rank"),
        start_ns=pl.col("start_ns") + trace.base_time_ns,
        group=pl.concat_str("group", "group_ranks", separator=" ", ignore_nulls=True),
    )
    place = pl.int_range(pl.len()).over("group", "step")
    kept = found.filter(place < most_per_step)
    counts = (
        work.table["step"].value_counts(name="events").sort("step", nulls_last=True).iter_rows()
    )
    excluded = {reason: n for reason, n in work.answered.excluded.items() if reason != OTHER_STEPS}
    excluded[_TOO_MANY] = len(found) - len(kept)
    steps = dict.fromkeys(work.answered.steps, 0) | dict(counts)
    return RankArrivals(
        rank=rank,
        world_size=world_size(trace),
        asked=work.answered.asked,
        devices=work.answered.devices,
        events=tuple(steps.items()),
        excluded=tuple((reason, count) for reason, count in excluded.items() if count),
        texts=tuple(tuple(kept[name].unique(maintain_order=True)) for name in _TEXTS),
        packed=_packed(kept),
    )


def _packed(table: pl.DataFrame) -> bytes:
    """The columns as differences from row to row, which are small, and compressed."""
    columns = [table[name].cast(pl.Int64).fill_null(_NULL).to_numpy() for name in _NUMBERS]
    for name in _TEXTS:
        distinct = table[name].unique(maintain_order=True)
        number = dict(zip(distinct, range(len(distinct)), strict=True))
        columns.append(np.array([number[text] for text in table[name]], np.int64))
    stacked = np.stack(columns)
    # Differences may leave 64 bits, and come back into them when they are added up again.
    return zlib.compress(np.diff(stacked, axis=1, prepend=np.int64(0)).tobytes(), level=6)
