"""Derives the tables of a trace, from no more of it than they depend on."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import polars as pl

from stepscope.run.working import working
from stepscope.trace.arrays.intervals import BoolArray
from stepscope.trace.derive.columns import DerivedTables, derive, needed_flows
from stepscope.trace.derive.nesting import MOST_NARROW
from stepscope.trace.derive.prefetched_arguments import prefetch_arguments
from stepscope.trace.schema import TABLES
from stepscope.trace.store.derived import BESIDE_FROM_EVENTS, TablesBeingCached
from stepscope.trace.tables import Tables

if TYPE_CHECKING:
    from stepscope.trace.model import Trace

_OFTEN_READ = ("name_id", "category", "lane_id", "start_ns", "dur_ns")
_LINKS = ("correlation", "external_id", "device")
"""Columns of `events` that link GPU work to what launched it."""


def tables_to_derive(trace: Trace, *, with_args: bool = False) -> Tables:
    """Reads what steps and derived columns are made of; arguments only where wanted.

    Tables and columns of `events` that they do not depend on are empty or missing: reading them
    would take longer than deriving. What most analyses read next stays in memory.
    """
    names = trace.name_rows
    often_read = trace.columns(*_OFTEN_READ)
    links = trace.read_columns(_LINKS).values()
    narrow = pl.Int32 if trace.event_count <= MOST_NARROW else pl.Int64
    number = pl.int_range(trace.event_count, dtype=narrow, eager=True).alias("event")
    empty = {
        name: pl.DataFrame(schema=TABLES[name])
        for name in ("args", "instants", "counters", "metadata")
    }
    if with_args:
        empty["args"] = trace.args.collect(engine=trace.engine)
    return Tables(
        events=pl.DataFrame([number, *often_read, *links]),
        names=names,
        flows=trace.flows.filter(needed_flows(names)).collect(engine=trace.engine),
        lanes=trace.lanes,
        problems=trace.problems,
        **empty,
    )


def derive_tables(trace: Trace, steps: pl.DataFrame | None) -> DerivedTables | TablesBeingCached:
    """Derives columns, steps and problems, and caches them in the trace's store, if it has one.

    Args:
        trace: The trace.
        steps: Its host steps, if already known.
    """
    with working("Finding steps, nesting and links"):
        if trace.store is None:
            derived = derive(tables_to_derive(trace, with_args=True), steps)
        else:
            # Arguments are most of a stored trace, and few of them are needed. Nothing here
            # refers to the tables, so that deriving can free what it no longer needs.
            derived = derive(
                partial(tables_to_derive, trace), steps, partial(_prefetch_arguments, trace)
            )
        if trace.derived_files is None:
            return derived
        if trace.event_count < BESIDE_FROM_EVENTS:
            return trace.derived_files.keep(derived)
        return TablesBeingCached(trace.derived_files, derived)


def _prefetch_arguments(trace: Trace, operators: BoolArray) -> pl.DataFrame:
    arguments = prefetch_arguments(trace.args, operators)
    trace.keep_prefetched_arguments(arguments)
    return arguments.rows.select("event", args="head")
