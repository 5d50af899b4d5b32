"""When a device had done the work that was launched before the recording and is not in the file.

A call that waits for the whole device proves that all of that has ended when it returns.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.arrays.nullable import distinct
from stepscope.trace.categories import HOST_CALLS, is_one_of
from stepscope.trace.tables import Tables

NEVER_NS = int(np.iinfo(np.int64).min)
_NOTABLE_WAIT_NS = 100_000
_FREES = r"Free(_v\d+)?$"
_FEWEST_ALIKE = 2
"""Later calls of the same name that say what such a call takes on an idle device."""


def frees_when_idle() -> pl.Expr:
    """Of calls with `group` and `name`: freeing memory, which waits until the device is idle."""
    return (pl.col("group") == "allocation") & pl.col("name").str.contains(_FREES)


def blocked_until(tables: Tables, work: Int64Array) -> int:
    """Returns until when the last call waited for work that is not recorded.

    Until it returned, where nothing was recorded before. A call after the first recorded work, such
    as a copy on a stream of its own, waited for more than that if it returned later after its end
    than any other call of its name does: then until as much earlier as these take.

    Returns:
        `NEVER_NS` where no call did.
    """
    if not len(work):
        return NEVER_NS
    events = tables.events
    group = pl.col("group")
    names = tables.names.filter(is_one_of(HOST_CALLS), (group == "sync") | frees_when_idle())
    if names.is_empty():
        return NEVER_NS
    start, dur = events["start_ns"].to_numpy(), events["dur_ns"].to_numpy()
    first_ns = int(start[work].min())
    rows = events.lazy().filter(
        pl.col("dur_ns") > _NOTABLE_WAIT_NS, pl.col("name_id").is_in(names["name_id"].implode())
    )
    calls = rows.select("event", "name_id").collect()
    calls = calls.join(names.select("name_id", "group"), on="name_id", maintain_order="left")
    call = calls["event"].to_numpy()
    call_start, call_end = start[call], start[call] + dur[call]
    is_sync = (calls["group"] == "sync").to_numpy()
    before = is_sync & (call_start < first_ns) & (call_end <= first_ns)
    if before.any():
        return int(call_end[before].max())
    return _beyond_recorded_work(events, work, calls.filter(~pl.Series(is_sync)))


def _beyond_recorded_work(events: pl.DataFrame, work: Int64Array, frees: pl.DataFrame) -> int:
    """Until when the first call that frees memory waited for work that is not recorded."""
    if len(frees) <= _FEWEST_ALIKE or len(distinct(events["device"].gather(work))) > 1:
        return NEVER_NS
    start, dur = events["start_ns"].to_numpy(), events["dur_ns"].to_numpy()
    call = frees["event"].to_numpy()
    call = call[np.argsort(start[call], kind="stable")]
    returned = start[call] + dur[call]
    ended = np.sort(start[work] + dur[work])
    done = np.searchsorted(ended, returned, side="right")
    last = np.maximum(np.where(done > 0, ended[np.maximum(done - 1, 0)], NEVER_NS), start[call])
    name = events["name_id"].gather(call).to_numpy()
    beyond = returned - last
    alike = beyond[1:][name[1:] == name[0]]
    # One that returns before any work has ended may have created the context.
    if not done[0] or len(alike) < _FEWEST_ALIKE or beyond[0] - alike.max() <= _NOTABLE_WAIT_NS:
        return NEVER_NS
    return int(returned[0] - alike.max())
