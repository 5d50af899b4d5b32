"""`Trace`: the tables of one trace, with what is derived from them and every analysis asks."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import polars as pl

from stepscope.errors import UsageError
from stepscope.run.side_json import whole_number
from stepscope.terminal.working import working
from stepscope.trace.arrays.nullable import filled
from stepscope.trace.derive.columns import DerivedTables, derive, needed_args, needed_flows
from stepscope.trace.derive.main_thread import find_main_lane
from stepscope.trace.derive.nesting import RowNumbers
from stepscope.trace.derive.steps import host_steps
from stepscope.trace.derive.unannotated_steps import describe
from stepscope.trace.problems import lacks_end
from stepscope.trace.schema import DERIVED, TABLES
from stepscope.trace.session import Session, kept
from stepscope.trace.store.derived import FREED_FROM_EVENTS, DerivedFiles
from stepscope.trace.store.directory import read_manifest
from stepscope.trace.store.files import parts_of
from stepscope.trace.tables import GROWING, Tables

DEVICES: dict[str, pl.DataType | type[pl.DataType]] = {
    "device": pl.Int32,
    "name": pl.String,
    "total_memory_bytes": pl.Int64,
    "multiprocessors": pl.Int64,
    "is_used": pl.Boolean,  # the trace has events on it
    "properties": pl.String,  # all properties in the file, as JSON
}
"""One row per GPU that the file describes or has events for, by number."""

_ATTRIBUTES = {"host_steps": "steps"}  # tables whose attribute has another name
_NUMBERS_OF_EVENTS = ("parent", "launch", "op", "forward")
"""Derived columns that refer to other events."""
_LAZY = (*GROWING, "names", "metadata")
"""The tables that are read when they are asked for."""
_OFTEN_READ = ("name_id", "category", "lane_id", "start_ns", "dur_ns")
"""What the arguments that derivation leaves in memory are known under."""
_LINKS = ("correlation", "external_id", "device")
"""Columns of `events` that link GPU work to what launched it."""


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and abs(value) < 2**63 else None


@dataclass(frozen=True)
class Trace:
    """The tables of one trace file, and what is derived from them on first use.

    The tables never change; see `stepscope.trace.schema` for columns and units. Frames are lazy:
    nothing is read until it is collected.

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
    def from_tables(cls, tables: Tables, path: str) -> Trace:
        """Creates a trace from tables in memory."""
        frames = {name: getattr(tables, name).lazy() for name in _LAZY}
        trace = cls(path=path, lanes=tables.lanes, problems=tables.problems, **frames)
        # What is in memory is not read again.
        trace.session.keep("event_count", len(tables.events))
        trace.session.keep("name_rows", tables.names)
        return trace

    @classmethod
    def from_store(cls, store: Path, path: str) -> Trace:
        """Creates a trace from a store. Only `lanes` and `problems` are read."""
        with contextlib.suppress(OSError):  # marks the store as used; it may be read-only
            os.utime(store)
        identity = read_manifest(store).get("identity")
        frames = {name: pl.scan_parquet(parts_of(store, name), glob=False) for name in TABLES}
        return cls(
            path=path,
            lanes=frames.pop("lanes").collect(),
            problems=frames.pop("problems").collect(),
            store=store,
            derived_files=DerivedFiles(store, identity) if isinstance(identity, str) else None,
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

    @kept
    def _cached_tables(self) -> DerivedTables | None:
        return None if self.derived_files is None else self.derived_files.read()

    @kept
    def _derivation(self) -> DerivedTables:
        return self._cached_tables or _derive(self, self.session.find("steps"))

    @property
    def derived(self) -> pl.LazyFrame:
        """Derived columns, row for row alongside `events`, as in `schema.DERIVED`.

        Computed on first use and cached in the store, if there is one.
        """
        return self._derivation.columns

    def derived_of(self, events: pl.Series, *names: str) -> pl.DataFrame:
        """Returns derived columns of some events, in their order."""
        tables = self._derivation
        if tables.narrow is None and self.event_count < FREED_FROM_EVENTS:
            return tables.columns.select(names).collect()[events]
        # One column after another, as each is read whole.
        return pl.DataFrame(
            [self.derived_numbers(name)[events].cast(DERIVED[name]) for name in names]
        )

    def derived_numbers(self, name: str) -> pl.Series:
        """Returns a derived column: numbers of events in 32 bits."""
        tables = self._derivation
        if tables.narrow is not None:
            return tables.narrow[name]
        if name == "op" and tables.operator is not None:
            return tables.operator
        column = pl.col(name)
        if name in _NUMBERS_OF_EVENTS:
            column = column.cast(pl.Int32)
        return tables.columns.select(column).collect().to_series()

    @property
    def parents(self) -> RowNumbers:
        """For each event the number of its parent, in 32 bits; -1: a root."""
        known = self._derivation.parent
        return filled(self.derived_numbers("parent"), -1) if known is None else known

    @property
    def device_steps(self) -> pl.DataFrame:
        """Device steps, with the columns of `schema.DEVICE_STEPS`."""
        return self._derivation.device_steps

    @property
    def overruns(self) -> pl.DataFrame:
        """GPU work whose recorded end is impossible, with the columns of `schema.OVERRUNS`."""
        return self._derivation.overruns

    @property
    def event_problems(self) -> pl.DataFrame:
        """Problems found while nesting and linking events, in the format of `problems`."""
        return self._derivation.problems

    @property
    def all_problems(self) -> pl.DataFrame:
        """`problems` followed by `event_problems`."""
        return pl.concat([self.problems, self.event_problems])

    @kept
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
            file = self._derivation.files.get(name)
            return [] if file is None else [file.absolute()]
        if self.store is None or name == "problems":
            return []
        return parts_of(self.store.absolute(), name)

    @kept
    def header(self) -> dict[str, Any]:
        """`metadata` with parsed values. If a key occurs twice, the last value wins."""
        rows = self.metadata.collect(engine=self.engine).iter_rows()
        return {key: json.loads(value, parse_int=whole_number) for key, value in rows}

    @property
    def base_time_ns(self) -> int:
        """Offset from the times in this trace to Unix time, in ns; 0 if the file has none.

        Recorders since 2024 write times relative to this base (`baseTimeNanoseconds`). All `*_ns`
        columns hold the times as they are in the file.
        """
        base = self.header.get("baseTimeNanoseconds", 0)
        # Times are added to it, and 64 bits hold the sum.
        return base if isinstance(base, int) and 0 <= base < 2**62 else 0

    @kept
    def steps(self) -> pl.DataFrame:
        """Host steps in chronological order, with the columns of `schema.HOST_STEPS`.

        Step N lasts from the start of its annotation (`ProfilerStep#N`) on the main thread to the
        start of the next; the last step ends with its own annotation. `trace/derive/steps.py` has
        the full definition. Without annotations, steps are found by what the main thread repeats
        (`trace/derive/unannotated_steps.py`); `step_source` says by what. There may be none.
        """
        if self.session.find("_derivation") is not None:
            return self._derivation.host_steps
        if self._cached_tables is not None:
            return self._cached_tables.host_steps
        return host_steps(_tables_to_derive(self))

    @kept
    def step_source(self) -> str:
        """What was taken as steps, such as "40 optimizer steps taken as steps".

        Empty if the steps are annotated, or if there are none.
        """
        return describe(self.steps, self.name_rows, self.columns("name_id"))

    @kept
    def main_lane(self) -> int | None:
        """The lane of the main thread, which runs the training loop.

        It is the one that carries the steps; `trace/derive/main_thread.py` says how it is found in
        a trace without steps. None if the trace has no operators and no calls.
        """
        if len(self.steps):
            return int(self.steps["lane_id"][0])
        events = self.columns("name_id", "lane_id", "start_ns", "dur_ns")
        return find_main_lane(events, self.name_rows)

    @kept
    def devices(self) -> pl.DataFrame:
        """GPUs, with the columns of `DEVICES`."""
        described = self.header.get("deviceProperties")
        found: dict[int, dict[str, Any]] = {}
        for entry in described if isinstance(described, list) else []:
            number = _integer(entry.get("id")) if isinstance(entry, dict) else None
            if number is not None and abs(number) < 2**31:
                found.setdefault(number, entry)
        in_use = set(self.lanes["device"].drop_nulls().to_list())
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

    def arguments(self, event: int) -> dict[str, Any]:
        """Returns the arguments of one event.

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
        value = {} if text is None else json.loads(text, parse_int=whole_number)
        return value if isinstance(value, dict) else {"args": value}

    def sql(self, query: str) -> pl.DataFrame:
        """Runs a SQL query over the views of this trace (see `stepscope query --list`).

        Raises:
            UsageError: The query is invalid, or is not a single SELECT.
        """
        from stepscope.trace.sql.query import run_sql

        return run_sql(self, query)


def _tables_to_derive(trace: Trace, *, with_args: bool = False) -> Tables:
    """Reads what steps and derived columns are made of; arguments only where wanted.

    Tables and columns of `events` that they do not depend on are empty or missing: reading them
    would take longer than deriving. What most analyses read next stays in memory.
    """
    names = trace.name_rows
    often_read = trace.columns(*_OFTEN_READ)
    links = trace.read_columns(_LINKS).values()
    number = pl.int_range(trace.event_count, dtype=pl.Int32, eager=True).alias("event")
    empty = {
        name: pl.DataFrame(schema=TABLES[name])
        for name in ("args", "instants", "counters", "metadata")
    }
    if with_args:
        empty["args"] = _needed_arguments(trace)
    return Tables(
        events=pl.DataFrame([number, *often_read, *links]),
        names=names,
        flows=trace.flows.filter(needed_flows(names)).collect(engine=trace.engine),
        lanes=trace.lanes,
        problems=trace.problems,
        **empty,
    )


def _derive(trace: Trace, steps: pl.DataFrame | None) -> DerivedTables:
    """Derives columns, steps and problems, and caches them in the trace's store, if it has one."""
    with working("Finding steps, nesting and links"):
        derived = derive(_tables_to_derive(trace, with_args=True), steps)
    if trace.derived_files is None:
        return derived
    return trace.derived_files.keep(derived)


def _needed_arguments(trace: Trace) -> pl.DataFrame:
    """The arguments, of a stored trace only those that matter: they are most of it."""
    if trace.store is None:
        return trace.args.collect(engine="in-memory")
    found = trace.args.filter(needed_args()).collect(engine="streaming")
    return found if found["event"].is_sorted() else found.sort("event")
