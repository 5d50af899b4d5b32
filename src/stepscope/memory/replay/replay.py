"""Replays a snapshot's history, and checks that it leads to what the snapshot found.

The invariant: what was allocated before the recording is what is freed without having been
requested, and what exists at the snapshot without an event; and the events, replayed from there,
lead exactly to the blocks and segments of the snapshot. Where they do not, events are missing, and
the contradictions say which kind and why that may be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.memory.replay.allocations import replay_blocks
from stepscope.memory.replay.arrays import History, Int64Array, history_of, nullable
from stepscope.memory.replay.pairing import (
    BEGINS_TWICE,
    END_WITHOUT_BEGIN,
    GONE_AT_SNAPSHOT,
    NONE,
    OTHER_SIZE,
    OTHER_STATE,
    THERE_AT_SNAPSHOT,
)
from stepscope.memory.replay.reserved import reserved_history
from stepscope.memory.schema import Action, Snapshot, Types

CURVE: Types = {
    "event": pl.Int64,
    "device": pl.Int32,
    "time_ns": pl.Int64,
    "requested_bytes": pl.Int64,  # asked for, of the blocks that the program holds
    "allocated_bytes": pl.Int64,  # the sizes of these blocks, rounded
    "active_bytes": pl.Int64,  # and of those given back that another stream still uses
    "reserved_bytes": pl.Int64,  # of the device
}
"""One row per event: what held after it."""

CONTRADICTIONS: Types = {
    "contradiction": pl.String,  # a short stable word
    "count": pl.Int64,
    "device": pl.Int32,
    "event": pl.Int64,  # the first; null: it shows at the snapshot only
    "address": pl.Int64,  # of the first
    "message": pl.String,
}
"""What in the history cannot be, by kind and device."""

NOTES: Types = {"annotation": pl.UInt32, "allocation": pl.Int64, "event": pl.Int64}
"""Texts that were attached to blocks while they lived: -> texts, -> allocations, -> events."""


@dataclass(frozen=True)
class Replay:
    """A history, replayed; each table has the columns of the constant that bears its name.

    Attributes:
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
    reserved, of_segments = reserved_history(snapshot, history)
    is_overflowed = _is_overflowed(snapshot)
    contradictions = [("block", *blocks.contradictions)]
    contradictions += [("segment", *found) for found in of_segments]
    return Replay(
        snapshot=snapshot,
        allocations=blocks.allocations,
        reserved=reserved,
        curve=_curve(history, blocks.allocations, reserved),
        notes=_notes(snapshot, blocks.allocations),
        contradictions=_contradictions(contradictions, _reason(history, is_overflowed)),
        is_overflowed=is_overflowed,
    )


def _is_overflowed(snapshot: Snapshot) -> bool | None:
    overflowed = snapshot.settings.get("trace_alloc_overflowed")
    if isinstance(overflowed, bool):
        return overflowed
    most = snapshot.settings.get("trace_alloc_max_entries")
    if isinstance(most, int) and not isinstance(most, bool):
        longest = snapshot.events.group_by("device").len().select(pl.col("len").max()).collect()
        return bool(longest.item() is not None and longest.item() >= most)
    return None


def _curve(history: History, allocations: pl.DataFrame, reserved: pl.DataFrame) -> pl.DataFrame:
    columns = [pl.Series("event", np.arange(len(history.device)))]
    columns += [pl.Series("device", history.device), nullable(history.time_ns).alias("time_ns")]
    devices = np.unique(history.device)
    is_held = ~pl.col("is_given_back_before")
    for name, things, size, end in (
        ("requested_bytes", allocations.lazy().filter(is_held), "requested_bytes", "free_event"),
        ("allocated_bytes", allocations.lazy().filter(is_held), "size_bytes", "free_event"),
        ("active_bytes", allocations.lazy(), "size_bytes", "end_event"),
        ("reserved_bytes", reserved.lazy(), "size_bytes", "end_event"),
    ):
        chosen = things.select("device", "start_event", pl.col(end).alias("end"), size=size)
        columns.append(pl.Series(name, _sum(chosen.collect(), history, devices)))
    return pl.DataFrame(columns, schema=CURVE)


def _sum(things: pl.DataFrame, history: History, devices: npt.NDArray[np.int32]) -> Int64Array:
    """What there was after each event of its device."""
    change = np.zeros(len(history.device), np.int64)
    for name, add in (("start_event", np.add.at), ("end", np.subtract.at)):
        known = things.select(name, "size").drop_nulls(name)
        add(change, known[name].to_numpy(), known["size"].to_numpy())
    before = things.filter(pl.col("start_event").is_null()).group_by("device").agg(pl.sum("size"))
    first = dict(before.iter_rows())
    for device in devices.tolist():
        mine = slice(None) if len(devices) == 1 else history.device == device
        change[mine] = np.cumsum(change[mine])
        change[mine] += first.get(device, 0)
    return change


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


_STATES = {
    "block": {
        BEGINS_TWICE: ("alloc_without_free", "a block is requested at an address that is in use"),
        END_WITHOUT_BEGIN: ("free_without_alloc", "a block is freed that was freed before"),
        GONE_AT_SNAPSHOT: (
            "missing_at_snapshot",
            "a block is in use by the history, but not in the snapshot",
        ),
        THERE_AT_SNAPSHOT: (
            "unexpected_at_snapshot",
            "a block is in use in the snapshot, but was freed by the history",
        ),
        OTHER_SIZE: ("other_size", "a block is freed or found with another size"),
        OTHER_STATE: ("other_state", "a block's state in the snapshot is not that of the history"),
    },
    "segment": {
        BEGINS_TWICE: ("segment_without_free", "a segment is allocated where one is"),
        END_WITHOUT_BEGIN: ("segment_free_without_alloc", "a segment is freed that was freed"),
        GONE_AT_SNAPSHOT: (
            "segment_missing_at_snapshot",
            "a segment is there by the history, but not in the snapshot",
        ),
        THERE_AT_SNAPSHOT: (
            "segment_unexpected_at_snapshot",
            "a segment is in the snapshot, but was freed by the history",
        ),
        OTHER_SIZE: ("segment_other_size", "a segment is freed or found with another size"),
    },
}
"""Of each kind of thing and of contradiction, a short stable word and what it means."""


def _reason(history: History, is_overflowed: bool | None) -> str:
    if not history.has(Action.ALLOC):
        return "the recorder was told to leave out allocations (skip_actions)"
    if not (history.has(Action.FREE_REQUESTED) or history.has(Action.FREE_COMPLETED)):
        return "the recorder was told to leave out frees (skip_actions)"
    if is_overflowed:
        return (
            "the recorder's ring dropped old events, which by itself contradicts nothing; "
            "recording was also off for a while, or another thread allocated while the snapshot "
            "was taken"
        )
    return (
        "events are missing: recording was off for a while, actions were left out (skip_actions), "
        "or another thread allocated while the snapshot was taken"
    )


Found = tuple[
    str,
    npt.NDArray[np.uint8],
    npt.NDArray[np.int64],
    npt.NDArray[np.int64],
    npt.NDArray[np.int64],
]
"""Kind of thing, then for each contradiction its kind, event, device and address."""


def _contradictions(found: Sequence[Found], reason: str) -> pl.DataFrame:
    """Contradictions by kind and device, with the columns of `CONTRADICTIONS`."""
    rows = []
    for thing, kinds, events, devices, addresses in found:
        for kind, (word, meaning) in _STATES[thing].items():
            for device in np.unique(devices[kinds == kind]).tolist():
                mine = np.flatnonzero((kinds == kind) & (devices == device))
                timed = mine[events[mine] != NONE]
                first = timed[np.argmin(events[timed])] if len(timed) else mine[0]
                event = int(events[first])
                rows.append(
                    (
                        word,
                        len(mine),
                        int(device),
                        None if event == NONE else event,
                        int(addresses[first]),
                        f"{meaning}; {reason}",
                    )
                )
    return pl.DataFrame(rows, schema=CONTRADICTIONS, orient="row")
