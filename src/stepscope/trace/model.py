"""`Trace`: the tables of one trace, lazily loaded, with the questions every analysis asks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import polars as pl

from stepscope.errors import UsageError
from stepscope.trace.arrays.nullable import filled
from stepscope.trace.derivation import derive_tables, tables_to_derive
from stepscope.trace.derive.columns import DerivedTables
from stepscope.trace.derive.main_thread import find_main_lane
from stepscope.trace.derive.nesting import MOST_NARROW, RowNumbers
from stepscope.trace.derive.prefetched_arguments import PrefetchedArguments
from stepscope.trace.derive.steps import host_steps
from stepscope.trace.derive.unannotated_steps import describe
from stepscope.trace.devices import devices_of
from stepscope.trace.locked_cache import locked_cached_property, locks_of
from stepscope.trace.problems import lacks_end
from stepscope.trace.schema import DERIVED, TABLES
from stepscope.trace.store.derived import (
    BESIDE_FROM_EVENTS,
    DerivedFiles,
    TablesBeingCached,
)
from stepscope.trace.store.files import StoredTables, parts_of
from stepscope.trace.tables import Tables

_ATTRIBUTES = {"host_steps": "steps"}  # tables whose attribute has another name
_NUMBERS_OF_EVENTS = ("parent", "launch", "op", "forward")
"""Derived columns that refer to other events."""


@dataclass(frozen=True)
class Trace:
    """The tables of one trace file. See `stepscope.trace.schema` for columns and units.

    Frames are lazy: nothing is read until it is collected.

    Attributes:
        path: Where the trace was read from, for messages.
        events: One row per event with a duration.
        args: The remaining arguments of each event, as JSON text.
        names: Distinct names, classified.
        instants: Events without a duration.
        counters: Sampled values.
        flows: Ends of the arrows between events.
        metadata: Everything outside the list of events, as JSON text by key.
        lanes: CPU threads and GPU streams.
        problems: What the reader repaired or skipped, with counts and the first occurrence.
        store: Directory of the Parquet files behind the frames; None if they are in memory.
        derived_files: Where derived tables are cached; None if they are not.
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

    @classmethod
    def from_tables(cls, tables: Tables, path: str) -> Trace:
        """Creates a trace from tables in memory."""
        trace = cls(
            path=path,
            events=tables.events.lazy(),
            args=tables.args.lazy(),
            names=tables.names.lazy(),
            instants=tables.instants.lazy(),
            counters=tables.counters.lazy(),
            flows=tables.flows.lazy(),
            metadata=tables.metadata.lazy(),
            lanes=tables.lanes,
            problems=tables.problems,
        )
        # What is in memory is not read again.
        trace.__dict__.update(event_count=len(tables.events), name_rows=tables.names)
        return trace

    @classmethod
    def from_store(cls, stored: StoredTables, path: str) -> Trace:
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
        return Tables(
            events=self.events.collect(),
            args=self.args.collect(),
            names=self.names.collect(),
            lanes=self.lanes,
            instants=self.instants.collect(),
            counters=self.counters.collect(),
            flows=self.flows.collect(),
            metadata=self.metadata.collect(),
            problems=self.problems,
        )

    def columns(self, *names: str) -> pl.DataFrame:
        """Returns columns of `events`, each in one contiguous chunk.

        Columns stay in memory once requested, so that files are not decoded again for the next
        analysis. Gathering rows from a contiguous column is also several times faster. Use this for
        the few columns that are indexed by row number, and `events` for everything else.
        """
        known: dict[str, pl.Series] = self.__dict__.setdefault("_columns", {})
        with locks_of(self).lock("_columns"):
            missing = [name for name in names if name not in known]
            if missing:
                known.update(self.read_columns(missing))
        return pl.DataFrame([known[name] for name in names])

    @property
    def engine(self) -> Literal["in-memory", "auto"]:
        """How to collect the frames: the streaming engine reads a store, and begins more slowly."""
        return "in-memory" if self.store is None else "auto"

    @locked_cached_property
    def event_count(self) -> int:
        """How many rows `events` has: more by one than the number of the last event."""
        return int(self.events.select(pl.len()).collect().item())

    def read_columns(self, names: Sequence[str]) -> dict[str, pl.Series]:
        """Reads columns of `events` like `columns`, but does not keep them in memory.

        Long ones one after another: the pieces of one serve the next, where all at once would take
        twice the memory, and longer.
        """
        if self.event_count < BESIDE_FROM_EVENTS:
            return self.events.select(names).collect(engine=self.engine).rechunk().to_dict()
        return {name: self.events.select(name).collect().to_series().rechunk() for name in names}

    @locked_cached_property
    def name_rows(self) -> pl.DataFrame:
        """`names` in memory: read once, because most analyses ask which names they look for."""
        return self.names.collect()

    @locked_cached_property
    def _cached_tables(self) -> DerivedTables | None:
        return None if self.derived_files is None else self.derived_files.read()

    @locked_cached_property
    def _derivation(self) -> DerivedTables | TablesBeingCached:
        return self._cached_tables or derive_tables(self, self.__dict__.get("steps"))

    def keep_prefetched_arguments(self, arguments: PrefetchedArguments) -> None:
        """Keeps `prefetched_arguments` in memory until `drop_prefetched_arguments`."""
        self.__dict__["_prefetched_arguments"] = arguments

    @property
    def prefetched_arguments(self) -> PrefetchedArguments | None:
        """Arguments that derivation has left in memory; None if it has read no store, or later."""
        found: PrefetchedArguments | None = self.__dict__.get("_prefetched_arguments")
        return found

    def drop_prefetched_arguments(self) -> None:
        """Frees `prefetched_arguments` once analyses have used them; later ones read the store."""
        self.__dict__.pop("_prefetched_arguments", None)

    @property
    def _derived_tables(self) -> DerivedTables:
        found = self._derivation
        return found.now if isinstance(found, TablesBeingCached) else found

    def wait_until_cached(self) -> None:
        """Derives, and waits until the derived tables are in the store, if they are cached there.

        From then on they are read from there, and take no memory.
        """
        found = self._derivation
        if isinstance(found, TablesBeingCached):
            found.cached  # noqa: B018 - waits

    @property
    def derived(self) -> pl.LazyFrame:
        """Derived columns, row for row alongside `events`, as in `schema.DERIVED`.

        Computed on first use and cached in the store, if there is one.
        """
        return self._derived_tables.columns

    def derived_of(self, events: pl.Series, *names: str) -> pl.DataFrame:
        """Returns derived columns of some events, in their order.

        Args:
            events: Numbers of events, without nulls.
            names: Columns of `schema.DERIVED`.
        """
        tables = self._derived_tables
        if tables.narrow is None and self.event_count < BESIDE_FROM_EVENTS:
            return tables.columns.select(names).collect()[events]
        # One column after another, as each is read whole.
        return pl.DataFrame(
            [self._derived_column(name)[events].cast(DERIVED[name]) for name in names]
        )

    def derived_numbers(self, name: str) -> pl.Series:
        """Returns a derived column of numbers of events, in 32 bits where that is enough.

        Args:
            name: "parent", "launch", "op" or "forward".
        """
        return self._derived_column(name)

    def _derived_column(self, name: str) -> pl.Series:
        """A derived column, in which numbers of events have 32 bits where that is enough."""
        tables = self._derived_tables
        if tables.narrow is not None:
            return tables.narrow[name]
        if name == "op" and tables.operator is not None:
            return tables.operator
        column = pl.col(name)
        if name in _NUMBERS_OF_EVENTS and self.event_count <= MOST_NARROW:
            column = column.cast(pl.Int32)
        return tables.columns.select(column).collect().to_series()

    @property
    def parents(self) -> RowNumbers:
        """For each event the number of its parent, in 32 bits where that is enough; -1: a root."""
        known = self._derived_tables.parent
        return filled(self.derived_numbers("parent"), -1) if known is None else known

    @property
    def device_steps(self) -> pl.DataFrame:
        """Device steps, with the columns of `schema.DEVICE_STEPS`."""
        return self._derived_tables.device_steps

    @property
    def overruns(self) -> pl.DataFrame:
        """GPU work whose recorded end is impossible, with the columns of `schema.OVERRUNS`."""
        return self._derived_tables.overruns

    @property
    def event_problems(self) -> pl.DataFrame:
        """Problems found while nesting and linking events, in the format of `problems`."""
        return self._derived_tables.problems

    @property
    def all_problems(self) -> pl.DataFrame:
        """`problems` followed by `event_problems`."""
        return pl.concat([self.problems, self.event_problems])

    @locked_cached_property
    def lacks_end(self) -> bool:
        """Whether the file is cut off, so that any step may lack work: see `problems.lacks_end`."""
        return lacks_end(self.problems, self.name_rows)

    def table(self, name: str) -> pl.LazyFrame:
        """Returns a table of `schema.TABLES` or `schema.DERIVED_TABLES` by name.

        For "problems", the result is `all_problems`.
        """
        if name == "problems":
            return self.all_problems.lazy()
        frame: pl.DataFrame | pl.LazyFrame = getattr(self, _ATTRIBUTES.get(name, name))
        return frame.lazy()

    def parquet_files(self, name: str) -> list[Path]:
        """Returns the Parquet files that hold exactly what `table` returns, if there are any."""
        if name not in TABLES:
            found = self._derivation
            tables = found.cached if isinstance(found, TablesBeingCached) else found
            kept = tables.files.get(name)
            return [] if kept is None else [kept.absolute()]
        if self.store is None or name == "problems":
            return []
        return parts_of(self.store.absolute(), name)

    @locked_cached_property
    def header(self) -> dict[str, Any]:
        """`metadata` with parsed values. If a key occurs twice, the last value wins."""
        rows = self.metadata.collect(engine=self.engine).iter_rows()
        return {key: json.loads(value) for key, value in rows}

    @property
    def base_time_ns(self) -> int:
        """Offset from the times in this trace to Unix time, in ns; 0 if the file has none.

        Recorders since 2024 write times relative to this base (`baseTimeNanoseconds`). All `*_ns`
        columns hold the times as they are in the file.
        """
        base = self.header.get("baseTimeNanoseconds", 0)
        return base if isinstance(base, int) else 0

    @locked_cached_property
    def steps(self) -> pl.DataFrame:
        """Host steps in chronological order, with the columns of `schema.HOST_STEPS`.

        Step N lasts from the start of its annotation (`ProfilerStep#N`) on the main thread to the
        start of the next; the last step ends with its own annotation. `trace/derive/steps.py` has
        the full definition. Without annotations, steps are found by what the main thread repeats
        (`trace/derive/unannotated_steps.py`); `step_source` says by what. There may be none.
        """
        if "_derivation" in self.__dict__:
            return self._derived_tables.host_steps
        if self._cached_tables is not None:
            return self._cached_tables.host_steps
        return host_steps(tables_to_derive(self))

    @locked_cached_property
    def step_source(self) -> str:
        """What was taken as steps, such as "40 optimizer steps taken as steps".

        Empty if the steps are annotated, or if there are none.
        """
        return describe(self.steps, self.name_rows, self.columns("name_id"))

    @locked_cached_property
    def main_lane(self) -> int | None:
        """The lane of the main thread, which runs the training loop.

        It is the one that carries the steps; `trace/derive/main_thread.py` says how it is found in
        a trace without steps. None if the trace has no operators and no calls.
        """
        if len(self.steps):
            return int(self.steps["lane_id"][0])
        events = self.columns("name_id", "lane_id", "start_ns", "dur_ns")
        return find_main_lane(events, self.name_rows)

    @locked_cached_property
    def devices(self) -> pl.DataFrame:
        """GPUs, with the columns of `devices.DEVICES`."""
        used = self.lanes["device"].drop_nulls().to_list()
        return devices_of(self.header.get("deviceProperties"), used)

    def arguments(self, event: int) -> dict[str, Any]:
        """Returns the arguments of one event.

        Args:
            event: The event's number (`events.event`).

        Returns:
            Keys and values as in the file; empty if the event has none. Arguments that are not a
            JSON object are returned under the key "args".

        Raises:
            UsageError: The trace has no such event.
        """
        found = self.args.filter(pl.col("event") == event).collect()
        if not len(found):
            raise UsageError(f"{self.path}: there is no event {event}")
        text = found["args"][0]
        value = {} if text is None else json.loads(text)
        return value if isinstance(value, dict) else {"args": value}

    def sql(self, query: str) -> pl.DataFrame:
        """Runs a SQL query over the views of this trace (see `stepscope query --list`).

        Raises:
            UsageError: The query is invalid, or is not a single SELECT.
        """
        from stepscope.trace.sql.query import run_sql

        return run_sql(self, query)
