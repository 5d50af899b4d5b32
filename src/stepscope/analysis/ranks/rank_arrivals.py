"""The arrivals of one rank at its collectives: a value that can be sent, without its trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from stepscope.analysis.selection.scope import OTHER_STEPS, AnsweredScope, Scope
from stepscope.trace.arrays.nullable import filled
from stepscope.trace.arrays.packed_columns import PackedColumns

_NULL = np.iinfo(np.int64).min

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
`local_<cause>_ns` and `beside_ns` say what the rank did since its previous collective and beside
this one, and those of `OF_LAUNCHES` how far its host and its device were (see `local_time`)."""

OWN_HOST, QUEUED = "own_host_ns", "queued_ns"
"""The host's own time up to a collective, and the time from its launch to its start."""
OWN_DEVICE, DEVICE_WORK, READY = "own_device_ns", "device_work_ns", "ready_ns"
"""The device's own time up to a collective, what of it is work, and how long before the
collective's start that work was done; negative where that was later."""
LAUNCHED_WORK = "launched_work_ns"
"""The work's own time since the launch of a collective; null: there is none."""
UNLAUNCHED = "unlaunched_ns"
"""What of the device's own time it had nothing to do, as it was not launched."""
HOST_WAITS = "host_waits_ns"
"""The waits of the host for the work's own time, up to a collective's launch."""

OF_LAUNCHES = (
    OWN_HOST,
    QUEUED,
    OWN_DEVICE,
    DEVICE_WORK,
    READY,
    LAUNCHED_WORK,
    UNLAUNCHED,
    HOST_WAITS,
)
"""All of them, in this order."""

_NUMBERS = ("event", "step", "group_size", "sequence", "message_bytes", "start_ns", "dur_ns")
TEXTS = ("kind", "group")


@dataclass(frozen=True)
class RankArrivals:
    """The collectives of one rank, small enough to be sent.

    Attributes:
        world_size: Ranks of its job, as its trace states it; None: it does not.
        asked: Which of its steps, devices and GPU events were read.
        events: Number of its GPU events by step; None stands for those of no step.
        excluded: GPU events that do not count, and collectives that were not kept, by reason.
        texts: The distinct texts of each of `kind` and `group`.
        packed: The columns of `ARRIVED`, and further ones if they were asked for.
        described: Of each process group in `texts`, what the job calls it, where that is known:
            group, description.
        waits_for_batches: Whether it waits for batches that workers prepare, which set its pace.
        host_ns: What its host needs for a steady step itself, waits for its GPU and others apart;
            0: not known.
        host_step_ns: The mean steady step of its host.
    """

    rank: int
    world_size: int | None
    asked: Scope
    devices: tuple[int, ...]
    events: tuple[tuple[int | None, int], ...]
    excluded: tuple[tuple[str, int], ...]
    texts: tuple[tuple[str | None, ...], ...]
    packed: PackedColumns
    described: tuple[tuple[str, str], ...] = ()
    of_host: bool = False
    waits_for_batches: bool = False
    host_ns: int = 0
    host_step_ns: int = 0

    @property
    def local(self) -> tuple[str, ...]:
        """The names of the further columns: what the rank did between collectives."""
        return self.packed.names[len(_NUMBERS) : -len(TEXTS)]

    def answered(self, steps: tuple[int, ...] | None = None) -> AnsweredScope:
        """What the rank's part of an answer is about, and what it leaves out."""
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


def arrivals_of(ranks: Sequence[RankArrivals], steps: Sequence[int] | None = None) -> pl.DataFrame:
    """The collectives of ranks in some steps, by default in all: columns `ARRIVED` and local time.

    Local times that were read of other ranks only are null.
    """
    local = tuple(dict.fromkeys(name for one in ranks for name in one.local))
    names = (*_NUMBERS, *local, *TEXTS)
    parts = []
    texts: dict[str, list[str | None]] = {name: [] for name in TEXTS}
    for one in ranks:
        columns = one.packed.columns()
        if one.packed.names != names:
            rows = dict(zip(one.packed.names, columns, strict=True))
            none = np.full(columns.shape[1], _NULL)
            columns = np.stack([rows.get(name, none) for name in names])
        for row, (name, own) in enumerate(zip(TEXTS, one.texts, strict=True), -len(TEXTS)):
            columns[row] += len(texts[name])
            texts[name] += own
        parts.append(columns)
    whole = dict(zip(names, np.concatenate(parts, axis=1), strict=True))
    rank = np.repeat([one.rank for one in ranks], [part.shape[1] for part in parts])
    named = [
        pl.Series(name, found, dtype=pl.String).gather(whole.pop(name))
        for name, found in texts.items()
    ]
    table = pl.DataFrame(whole).select(pl.when(pl.all() != _NULL).then(pl.all()))
    table = table.with_columns(*named, rank=rank).select(
        *(pl.col(name).cast(dtype) for name, dtype in ARRIVED.items()), *local
    )
    return table if steps is None else table.filter(pl.col("step").is_in(list(steps)))


def packed(table: pl.DataFrame, local: Sequence[str]) -> PackedColumns:
    """The columns, with the number of each text among those of its column."""
    columns = [filled(table[name].cast(pl.Int64), _NULL) for name in (*_NUMBERS, *local)]
    for name in TEXTS:
        texts = table[name].to_list()
        place = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        columns.append(np.array([place[text] for text in texts], np.int64))
    return PackedColumns.of((*_NUMBERS, *local, *TEXTS), np.stack(columns))
