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
from stepscope.analysis.ranks.host_groups import lists_groups, with_host_groups
from stepscope.analysis.ranks.local_time import LOCAL_CAUSES, local_time
from stepscope.analysis.selection.gpu_work import OTHER_STEPS, GpuWork, gpu_work
from stepscope.analysis.selection.scope import AnsweredScope, Scope
from stepscope.trace.model import Trace

MOST_PER_STEP = 4096
"""Collectives of one process group that are kept of a step; further ones are counted."""
_NULL = np.iinfo(np.int64).min
UNKNOWN_GROUP = "collectives whose process group the trace does not tell"
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
"""One row per collective of a rank, in order of start. Where they were asked for, further columns
`local_<cause>_ns` say what the rank did since its previous collective (see `local_time`)."""

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
        packed: The columns of `ARRIVED` and of `causes`, compressed.
        described: Of each process group in `texts`, what the job calls it, where that is known:
            group, description.
        causes: Those of `LOCAL_CAUSES` that local time is divided into; empty: it is not.
    """

    rank: int
    world_size: int | None
    asked: Scope
    devices: tuple[int, ...]
    events: tuple[tuple[int | None, int], ...]
    excluded: tuple[tuple[str, int], ...]
    texts: tuple[tuple[str | None, ...], ...]
    packed: bytes
    described: tuple[tuple[str, str], ...] = ()
    causes: tuple[str, ...] = ()

    def table(self, steps: Sequence[int] | None = None) -> pl.DataFrame:
        """The collectives of some steps, by default of all: columns `ARRIVED` and local time."""
        local = [f"local_{cause}_ns" for cause in self.causes]
        names = (*_NUMBERS, *local, *_TEXTS)
        columns = np.frombuffer(zlib.decompress(self.packed), np.int64)
        columns = np.cumsum(columns.reshape(len(names), -1), axis=1)
        whole = dict(zip(names, columns, strict=True))
        table = pl.DataFrame({name: whole[name] for name in (*_NUMBERS, *local)}).select(
            pl.when(pl.all() != _NULL).then(pl.all())
        )
        named = [
            pl.Series(name, values, dtype=pl.String).gather(whole[name])
            for name, values in zip(_TEXTS, self.texts, strict=True)
        ]
        table = table.with_columns(*named, rank=pl.lit(self.rank, pl.Int64)).select(
            *(pl.col(name).cast(dtype) for name, dtype in ARRIVED.items()), *local
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
    rank: int,
    trace: Trace,
    scope: Scope | None = None,
    most_per_step: int = MOST_PER_STEP,
    *,
    with_causes: bool = False,
) -> RankArrivals:
    """Read a rank's collectives: those of its GPU or, where it has none, of its CPU.

    Args:
        rank: Its number.
        trace: Its trace.
        scope: Steps, devices and events that count.
        most_per_step: Collectives to keep of each process group in a step, the first ones.
        with_causes: Whether to divide the time between collectives by cause.

    Raises:
        UsageError: The scope names steps that the trace does not have.
    """
    work = gpu_work(trace, scope)
    collectives = _collectives(trace, work)
    # Groups of different ranks may go by one name: name and ranks together tell them apart.
    found = collectives.with_columns(
        pl.lit(rank, pl.Int64).alias("rank"),
        start_ns=pl.col("start_ns") + trace.base_time_ns,
        group=pl.concat_str("group", "group_ranks", separator=" ", ignore_nulls=True),
    )
    if with_causes:
        found = found.join(_local(trace, scope), on="event", how="left", maintain_order="left")
    causes = tuple(cause for cause in LOCAL_CAUSES if f"local_{cause}_ns" in found.columns)
    of_host = _is_of_host(collectives)
    has_groups = of_host and lists_groups(trace)
    is_known = pl.col("group") != "" if has_groups else pl.lit(value=True)
    place = pl.int_range(pl.len()).over("group", "step")
    told = found.filter(is_known)
    kept = told.filter(place < most_per_step)
    events = collectives["step"] if of_host and work.table.is_empty() else work.table["step"]
    counts = events.value_counts(name="events").sort("step", nulls_last=True).iter_rows()
    excluded = {reason: n for reason, n in work.answered.excluded.items() if reason != OTHER_STEPS}
    excluded[_TOO_MANY] = len(told) - len(kept)
    excluded[UNKNOWN_GROUP] = len(found) - len(told)
    steps = dict.fromkeys(work.answered.steps, 0) | dict(counts)
    return RankArrivals(
        rank=rank,
        world_size=world_size(trace),
        asked=work.answered.asked,
        devices=work.answered.devices,
        events=tuple(steps.items()),
        excluded=tuple((reason, count) for reason, count in excluded.items() if count),
        texts=tuple(tuple(kept[name].unique(maintain_order=True)) for name in _TEXTS),
        packed=_packed(kept, [f"local_{cause}_ns" for cause in causes]),
        described=_described(trace, kept),
        causes=causes,
    )


def _collectives(trace: Trace, work: GpuWork) -> pl.DataFrame:
    found = read_collectives(trace, work.members)
    if found.is_empty():
        found = with_host_groups(trace, read_host_collectives(trace, work.answered.asked))
    return found


def _is_of_host(collectives: pl.DataFrame) -> bool:
    return len(collectives) > 0 and collectives["device"].null_count() == len(collectives)


def _local(trace: Trace, scope: Scope | None) -> pl.DataFrame:
    """Local time of all collectives by event: what precedes a step is not cut off by its choice."""
    work = gpu_work(trace, Scope() if scope is None else replace(scope, steps=None))
    collectives = _collectives(trace, work)
    local = local_time(trace, collectives, None if _is_of_host(collectives) else work)
    return pl.concat([collectives.select("event"), local], how="horizontal")


def _described(trace: Trace, kept: pl.DataFrame) -> tuple[tuple[str, str], ...]:
    """What the file calls the process groups of these collectives."""
    about = trace.header.get("distributedInfo")
    listed = about.get("pg_config") if isinstance(about, dict) else None
    words = {
        str(entry.get("pg_name")): str(entry.get("pg_desc"))
        for entry in (listed if isinstance(listed, list) else [])
        if isinstance(entry, dict) and entry.get("pg_desc") not in {None, "", "undefined"}
    }
    groups = kept["group"].unique(maintain_order=True).drop_nulls()
    found = ((group, words.get(group.partition(" ")[0], "")) for group in groups)
    return tuple((group, word) for group, word in found if word)


def _packed(table: pl.DataFrame, local: Sequence[str]) -> bytes:
    """The columns as differences from row to row, which are small, and compressed."""
    columns = [
        table[name].cast(pl.Int64).fill_null(_NULL).to_numpy() for name in (*_NUMBERS, *local)
    ]
    for name in _TEXTS:
        distinct = table[name].unique(maintain_order=True)
        number = dict(zip(distinct, range(len(distinct)), strict=True))
        columns.append(np.array([number[text] for text in table[name]], np.int64))
    stacked = np.stack(columns)
    # Differences may leave 64 bits, and come back into them when they are added up again.
    return zlib.compress(np.diff(stacked, axis=1, prepend=np.int64(0)).tobytes(), level=6)
