"""Replays a snapshot's history, and checks that it leads to what the snapshot found.

The invariant: what was allocated before the recording is what is freed without having been
requested, and what is there at the snapshot without an event; and the events, replayed from there,
lead exactly to the blocks and segments of the snapshot. Where they do not, events are missing, and
the contradictions say which kind and why that may be.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.memory.replay.allocations import replay_blocks
from stepscope.memory.replay.arrays import History, history_of
from stepscope.memory.replay.contradictions import Sources, table_of
from stepscope.memory.replay.reserved import reserved_history
from stepscope.memory.replay.tables import CURVE, NOTES
from stepscope.memory.schema import Action, Snapshot


@dataclass(frozen=True)
class Replay:
    """A history, replayed.

    Attributes:
        snapshot: Whose.
        allocations: With the columns of `tables.ALLOCATIONS`.
        reserved: With the columns of `tables.RESERVED`.
        curve: With the columns of `tables.CURVE`.
        notes: With the columns of `tables.NOTES`.
        contradictions: With the columns of `tables.CONTRADICTIONS`.
        is_overflowed: Whether the recorder's ring dropped events; None: the file does not say, and
            nothing shows it.
    """

    snapshot: Snapshot
    allocations: pl.DataFrame
    reserved: pl.DataFrame
    curve: pl.DataFrame
    notes: pl.DataFrame
    contradictions: pl.DataFrame
    is_overflowed: bool | None

    @property
    def mismatches(self) -> int:
        """How often the history contradicts itself or the snapshot; 0: the replay is exact."""
        return int(self.contradictions["count"].sum())


def replay(snapshot: Snapshot) -> Replay:
    """Replays a snapshot's history."""
    history = history_of(snapshot)
    blocks = replay_blocks(snapshot, history)
    reserved = reserved_history(snapshot, history)
    is_overflowed = _is_overflowed(snapshot)
    sources = Sources(
        is_overflowed=bool(is_overflowed),
        has_allocs=history.has(Action.ALLOC),
        has_frees=history.has(Action.FREE_REQUESTED) or history.has(Action.FREE_COMPLETED),
    )
    contradictions = table_of([("block", *blocks.contradictions)], sources)
    for found in reserved.contradictions:
        contradictions = pl.concat([contradictions, table_of([("segment", *found)], sources)])
    return Replay(
        snapshot=snapshot,
        allocations=blocks.allocations,
        reserved=reserved.stretches,
        curve=_curve(history, blocks.allocations, reserved.stretches),
        notes=_notes(snapshot, blocks.allocations),
        contradictions=contradictions,
        is_overflowed=is_overflowed,
    )


def _is_overflowed(snapshot: Snapshot) -> bool | None:
    said = snapshot.settings.get("trace_alloc_overflowed")
    if isinstance(said, bool):
        return said
    most = snapshot.settings.get("trace_alloc_max_entries")
    if isinstance(most, int) and not isinstance(most, bool):
        longest = snapshot.events.group_by("device").len().select(pl.col("len").max()).collect()
        return bool(longest.item() is not None and longest.item() >= most)
    return None


def _curve(history: History, allocations: pl.DataFrame, reserved: pl.DataFrame) -> pl.DataFrame:
    count = len(history.device)
    held = allocations.filter(~pl.col("is_given_back_before"))
    sums = {
        "requested_bytes": _sum(held, "requested_bytes", "free_event", history),
        "allocated_bytes": _sum(held, "size_bytes", "free_event", history),
        "active_bytes": _sum(allocations, "size_bytes", "end_event", history),
        "reserved_bytes": _sum(reserved, "size_bytes", "end_event", history),
    }
    table = {"event": np.arange(count), "device": history.device, "time_ns": history.time_ns}
    known = pl.DataFrame({**table, **sums}).with_columns(
        time_ns=pl.when(pl.col("time_ns") > np.iinfo(np.int64).min).then("time_ns")
    )
    return known.select(pl.col(name).cast(kind) for name, kind in CURVE.items())


def _sum(
    things: pl.DataFrame, size: str, end: str, history: History
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """What there was after each event of its device."""
    change = np.zeros(len(history.device), np.int64)
    first: dict[int, int] = {}
    grown = things.filter(pl.col("start_event").is_not_null())
    np.add.at(change, grown["start_event"].to_numpy(), grown[size].to_numpy())
    gone = things.filter(pl.col(end).is_not_null())
    np.subtract.at(change, gone[end].to_numpy(), gone[size].to_numpy())
    before = things.filter(pl.col("start_event").is_null()).group_by("device").agg(pl.sum(size))
    first.update(before.iter_rows())
    total = np.empty(len(change), np.int64)
    for device in np.unique(history.device):
        mine = history.device == device
        total[mine] = first.get(int(device), 0) + np.cumsum(change[mine])
    return total


def _notes(snapshot: Snapshot, allocations: pl.DataFrame) -> pl.DataFrame:
    """Annotations of live blocks, each with the block that it was attached to."""
    attached = (
        snapshot.events.filter(
            (pl.col("action") == Action.ANNOTATE.value) & pl.col("metadata").is_not_null()
        )
        .select("device", "address", "event", pl.col("metadata").alias("annotation"))
        .collect()
    )
    if attached.is_empty():
        return pl.DataFrame(schema=NOTES)
    # One row for each address and moment, so that what lived there then is the last before it.
    lives = allocations.select(
        "device",
        "address",
        "allocation",
        pl.col("start_event").fill_null(-1).alias("event"),
        pl.col("end_event").fill_null(np.iinfo(np.int64).max).alias("until"),
    )
    places = ["device", "address"]
    together = pl.concat([lives, attached], how="diagonal").sort(*places, "event")
    found = together.with_columns(pl.col("allocation", "until").forward_fill().over(places))
    return (
        found.filter(pl.col("annotation").is_not_null() & (pl.col("event") < pl.col("until")))
        .select(pl.col(name).cast(kind) for name, kind in NOTES.items())
        .sort("event")
    )
