"""The tables of one trace, read when somebody asks for them, and the session of work on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

import polars as pl

from stepscope.trace.session import Session, kept
from stepscope.trace.store.derived import FREED_FROM_EVENTS, DerivedFiles
from stepscope.trace.store.files import StoredTables
from stepscope.trace.tables import GROWING, Tables

_Trace = TypeVar("_Trace", bound="LazyTables")
_LAZY = (*GROWING, "names", "metadata")
"""The tables that are read when they are asked for."""


@dataclass(frozen=True)
class LazyTables:
    """The tables of one trace file. See `stepscope.trace.schema` for columns and units.

    They never change. Frames are lazy: nothing is read until it is collected.

    Attributes:
        args: The remaining arguments of each event, as JSON text.
        metadata: Everything outside the list of events, as JSON text by key.
        store: Directory of the Parquet files behind the frames; None if they are in memory.
        session: Holds what was read or worked out, until it is closed.
    """

    path: str
    events: pl.LazyFrame
    args: pl.LazyFrame
    names: pl.LazyFrame
    instants: pl.LazyFrame
    counters: pl.LazyFrame
    flows: pl.LazyFrame
    metadata: pl.LazyFrame
    lanes: pl.DataFrame
    problems: pl.DataFrame
    store: Path | None = None
    derived_files: DerivedFiles | None = None
    session: Session = field(default_factory=Session, init=False, repr=False, compare=False)

    @classmethod
    def from_tables(cls: type[_Trace], tables: Tables, path: str) -> _Trace:
        """Creates a trace from tables in memory."""
        frames = {name: getattr(tables, name).lazy() for name in _LAZY}
        trace = cls(path=path, lanes=tables.lanes, problems=tables.problems, **frames)
        # What is in memory is not read again.
        trace.session.keep("event_count", len(tables.events))
        trace.session.keep("name_rows", tables.names)
        return trace

    @classmethod
    def from_store(cls: type[_Trace], stored: StoredTables, path: str) -> _Trace:
        """Creates a trace from a store. Only `lanes` and `problems` are read."""
        frames = dict(stored.frames)
        return cls(
            path=path,
            lanes=frames.pop("lanes").collect(),
            problems=frames.pop("problems").collect(),
            store=stored.directory,
            derived_files=stored.derived_files,
            **frames,
        )

    def tables(self) -> Tables:
        """Reads all tables into memory."""
        frames = {name: getattr(self, name).collect() for name in _LAZY}
        return Tables(lanes=self.lanes, problems=self.problems, **frames)

    def columns(self, *names: str) -> pl.DataFrame:
        """Returns columns of `events`, each in one contiguous chunk.

        Columns stay in memory once requested, so that files are not decoded again for the next
        analysis. Gathering rows from a contiguous column is also several times faster. Use this for
        the few columns that are indexed by row number, and `events` for everything else.
        """
        known = self.session.once("columns", dict[str, pl.Series])
        with self.session.lock("columns"):
            missing = [name for name in names if name not in known]
            if missing:
                known.update(self.read_columns(missing))
        return pl.DataFrame([known[name] for name in names])

    @property
    def engine(self) -> Literal["in-memory", "auto"]:
        """How to collect the frames: the streaming engine reads a store, and begins more slowly."""
        return "in-memory" if self.store is None else "auto"

    @kept
    def event_count(self) -> int:
        """How many rows `events` has: more by one than the number of the last event."""
        return int(self.events.select(pl.len()).collect().item())

    def read_columns(self, names: Sequence[str]) -> dict[str, pl.Series]:
        """Reads columns of `events` like `columns`, but does not keep them in memory.

        Long ones are read one by one, so that each reuses the last one's buffers.
        """
        if self.event_count < FREED_FROM_EVENTS:
            return self.events.select(names).collect(engine=self.engine).rechunk().to_dict()
        return {name: self.events.select(name).collect().to_series().rechunk() for name in names}

    @kept
    def name_rows(self) -> pl.DataFrame:
        """`names` in memory: read once, because most analyses ask which names they look for."""
        return self.names.collect()

    def close(self) -> None:
        """End the session: whoever opened the trace needs it no longer."""
        self.session.close()
