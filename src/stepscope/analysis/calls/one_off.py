"""Host calls that cost far more than their like, and only once: start-up costs, not the step's.

Definitions
    candidate     A call of the runtime or driver, or a stretch of an operator's own time (nothing
                  recorded inside it), of which at least `FLOOR_NS` (of an operator:
                  `OPERATOR_FLOOR_NS`) pass while no GPU work runs, and
                  which takes at least `TIMES` times what its like usually takes. Its like are the
                  other calls of its name. Time in which the GPU works may be waiting for it: a
                  launch that waits for room in the launch queue is back-pressure. Calls that
                  wait by their nature (synchronisation, copies) are never candidates; nor is what
                  comes before the first recorded GPU work, if that work had waited in the queue
                  for work that was not recorded.
    usual         The median of the calls of its name that are shorter than `FLOOR_NS`; of a name
                  without such calls, the median of all if there are several, else 0.
    one-off       A candidate that does not recur: it is the first of its kind (of launches: of its
                  kernel and operator; else of its name), or lies at the beginning, or is one of
                  very few. What is slow again in the second half of the steps recurs. An operator
                  must be the first of its name or lie at the beginning, an allocation at the
                  beginning. An operator alone of its name counts if there are several steps, or if
                  it is one of torch's own.
    growth        Allocations in the first half of at least three steps and in none later.
    search        A convolution that tries algorithms: it launches far more than others of its
                  name, or waits for the device again and again in between.
    autotuning    Kernels of Triton that are timed to choose among their configurations: at least
                  `TIMED` launches in a row, each between two records of events, of one kernel and
                  what clears the cache before it. With them go the loads of the configurations and
                  the other launches of the same kernels around them, up to the last wait for the
                  device.

Rows never overlap on a thread, so what they take beyond the usual adds up.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analysis.selection.gpu_work import recorded_work
from stepscope.analysis.selection.names import (
    events_named,
    events_with_names,
    is_call,
    is_operator,
    names_that,
    times_of,
)
from stepscope.analysis.selection.scope import memoized
from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import BoolArray, Int64Array, Intervals
from stepscope.trace.arrays.nullable import filled
from stepscope.trace.arrays.ordering import distinct_groups
from stepscope.trace.model import Trace

FLOOR_NS = 1_000_000
"""A call or stretch below this is no one-off."""
OPERATOR_FLOOR_NS = 5_000_000
"""The same for a stretch of an operator: the system may stop any thread for a millisecond."""
TIMES = 20
"""A one-off takes at least so many times the usual."""
_CONTEXT_NS = 50_000_000
"""An allocation of this length before all GPU work creates the device's context."""
_BEGINNING = 0.1
"""Of the calls of a name: what counts as the beginning of a file without steps."""
_FEW = 2
"""How many slow calls of a name, neither first of their kind nor at the beginning, are few."""
_SEARCH_LAUNCHES = 8
_SEARCH_WAITS = 2
TIMED = 12
"""So many timed launches in a row are a benchmark of a kernel: some ten times each at least."""
_MOST_TIMED_NAMES = 3
_RECORDS = r"EventRecord"
_CLEARS = r"(?i)fill|memset|zero"
_SEARCH_TIMES = 5
_QUEUED_NS = 1_000_000

ONE_OFFS: dict[str, pl.DataType | type[pl.DataType]] = {
    "event": pl.Int64,
    "lane_id": pl.Int32,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "usual_ns": pl.Int64,
    "kind": pl.String,
    "what": pl.String,
}
"""The event, the stretch of it that is set apart, what its like takes, and what it is in words."""

CONTEXT = "creation of the device's context"
MODULES = "loading of modules"
GROWTH = "growth of the allocator"
CREATION = "creation of streams and handles"
GRAPHS = "set-up of graphs"
SEARCH = "search for the fastest algorithm"
AUTOTUNING = "autotuning of kernels"
FIRST_RUN = "first run of an operator"
OTHER_CALL = "a slow call"

_WAITS = ("sync", "copy_call", "stream_wait")
_CONVOLUTION = (
    r"(?i)(cudnn|miopen)_(depthwise_)?convolution|convolution_backward|_thnn_conv|slow_conv"
)
_OWN_OPERATOR = "aten::"
"""Torch's own operators, which compute nothing themselves where they launch work."""
_PRODUCT = r"::(add|b|badd)?mm$|::(addmv|mv|dot|linear|matmul|bmm|baddbmm|_scaled_mm|addbmm)$"


def one_off_calls(
    trace: Trace, window: tuple[int, int] | None = None, lanes: tuple[int, ...] | None = None
) -> pl.DataFrame:
    """The one-off calls of some threads that lie in a window, with the columns of `ONE_OFFS`.

    Each is compared with its like in the whole trace. What a row costs is `end_ns - start_ns -
    usual_ns`.

    Args:
        window: Only those that overlap this time; None: all.
    """
    found = _all_one_offs(trace)
    if window is not None:
        found = found.filter(pl.col("end_ns") > window[0], pl.col("start_ns") < window[1])
    if lanes is not None:
        found = found.filter(pl.col("lane_id").is_in(list(lanes)))
    return found


class _Steps(NamedTuple):
    """The steps that are not empty, in order."""

    starts: Int64Array
    ends: Int64Array

    def __len__(self) -> int:
        return len(self.starts)

    def of(self, times: Int64Array) -> Int64Array:
        """The place of the step of each moment; -1 before the first."""
        return np.searchsorted(self.starts, times, side="right") - 1


class _Known(NamedTuple):
    trace: Trace
    work: pl.DataFrame
    busy: Intervals
    steps: _Steps
    known_from_ns: int  # what begins earlier may wait for work that was not recorded


@memoized
def _all_one_offs(trace: Trace) -> pl.DataFrame:
    work = recorded_work(trace)
    if work.is_empty():
        # Without GPU work operators do the work themselves: their length is no start-up cost.
        return pl.DataFrame(schema=ONE_OFFS)
    busy = intervals.merge(work["start_ns"].to_numpy(), work["end_ns"].to_numpy())
    host = trace.steps.filter(~pl.col("is_empty"))
    steps = _Steps(host["start_ns"].to_numpy(), host["end_ns"].to_numpy())
    known = _Known(trace, work, busy, steps, _known_from(trace, work))
    searches = pl.concat([_searches(known), _autotuning(known)])
    found = pl.concat([_calls(known), _operators(known)])
    if len(searches):
        inside = np.zeros(len(found), np.bool_)
        for lane, start, end in searches.select("lane_id", "start_ns", "end_ns").iter_rows():
            inside |= (
                (found["lane_id"] == lane) & (found["start_ns"] >= start) & (found["end_ns"] <= end)
            ).to_numpy()
        found = pl.concat([found.filter(~pl.Series(inside)), searches])
    return found.sort("start_ns", "event")


def _known_from(trace: Trace, work: pl.DataFrame) -> int:
    """From when on the file shows what the device did; earlier it may have had other work.

    That is so until the first work, if this had waited in the queue with nothing before it.
    """
    first = work.filter(pl.col("start_ns") == pl.col("start_ns").min()).head(1)
    launch = first["launch"][0]
    if launch is None:
        return int(np.iinfo(np.int64).min)
    call = trace.columns("start_ns", "dur_ns")[int(launch)]
    returned = int(call["start_ns"][0] + call["dur_ns"][0])
    begun = int(first["start_ns"][0])
    return begun if begun - returned > _QUEUED_NS else int(np.iinfo(np.int64).min)


class _Candidates(NamedTuple):
    """Slow calls or stretches, one row each, in order of time.

    Attributes:
        key: What must not be slow again: of a launch its kernel and operator, else its name.
        place: Its place among the events of its name, from 0 to 1.
    """

    name: Int64Array
    key: Int64Array
    is_first: BoolArray
    place: npt.NDArray[np.float64]
    start: Int64Array


def _do_not_recur(slow: _Candidates, steps: _Steps, *, allows_few: bool = True) -> BoolArray:
    """Which candidates are one-offs.

    Args:
        allows_few: Whether a few that are neither first of their kind nor at the beginning count.
    """
    step, count = steps.of(slow.start), len(steps)
    kept = np.ones(len(slow.start), np.bool_)
    is_beginning = step < -(-count // 4) if count > 1 else slow.place < _BEGINNING
    for key in np.unique(slow.key):
        mine = slow.key == key
        if count > 1:
            recurs = len(np.unique(step[mine])) > 1 and 2 * int(step[mine].max()) >= count
        else:
            recurs = len(np.unique(slow.start[mine])) > _FEW and not is_beginning[mine].all()
        kept[mine] &= not recurs
    stray = kept & ~slow.is_first & ~is_beginning
    if not allows_few:
        return kept & ~stray
    for name in np.unique(slow.name[stray]):
        mine = stray & (slow.name == name)
        if count > 1:
            are_few = len(np.unique(step[mine])) <= max(1, count // 4)
        else:
            are_few = int(mine.sum()) <= _FEW
        kept[mine] &= are_few
    return kept


def _calls(known: _Known) -> pl.DataFrame:
    """Slow calls of the runtime and the driver, and the growth of the allocator."""
    trace = known.trace
    judged = names_that(trace, is_call() & ~pl.col("group").is_in(_WAITS).fill_null(value=False))
    events = events_with_names(trace, judged)
    columns = trace.columns("name_id", "lane_id", "start_ns", "dur_ns")
    dur = columns["dur_ns"].to_numpy()[events]
    start = columns["start_ns"].to_numpy()[events]
    name = columns["name_id"].to_numpy()[events].astype(np.int64)
    grows = _growth(known, events, name, start, dur)
    slow = np.flatnonzero((dur >= FLOOR_NS) & (start >= known.known_from_ns) & ~grows)
    own = dur[slow] - intervals.covered(known.busy, start[slow], start[slow] + dur[slow])
    slow, own = slow[own >= FLOOR_NS], own[own >= FLOOR_NS]
    if not len(slow) and not grows.any():
        return pl.DataFrame(schema=ONE_OFFS)
    usual = np.zeros(len(slow), np.int64)
    place = np.zeros(len(slow), np.float64)
    is_alone = np.zeros(len(slow), np.bool_)
    for one in np.unique(name[slow]):
        mine = name == one
        rows = name[slow] == one
        fast = mine & (dur < FLOOR_NS)
        if fast.any():
            usual[rows] = round(float(np.median(dur[fast])))
        elif int(mine.sum()) > _FEW + 1:
            usual[rows] = round(float(np.median(dur[mine])))
        is_alone[rows] = not fast.any()
        begun = np.sort(start[mine])
        place[rows] = np.searchsorted(begun, start[slow[rows]]) / max(1, len(begun))
    first_work = int(known.work["start_ns"].to_numpy().min())
    is_much = own >= np.maximum(FLOOR_NS, TIMES * usual)
    # A single allocation of some milliseconds may recur in steps that were not recorded.
    groups = trace.name_rows["group"].fill_null("").to_numpy()[name[slow]]
    may_recur = (groups == "allocation") & is_alone & (start[slow] > first_work)
    is_much &= ~may_recur | (own >= _CONTEXT_NS) | (len(known.steps) > 1)
    slow, usual, place = slow[is_much], usual[is_much], place[is_much]
    key, is_first, kernel = _kinds(known, events[slow], name[slow], place)
    # Later allocations are the allocator's, whether they recur in the window or not.
    is_late = (known.steps.of(start) >= -(-len(known.steps) // 4)) & (start > first_work)
    is_late = is_late[slow] & (len(known.steps) > 1) & (groups[is_much] == "allocation")
    kept = _do_not_recur(_Candidates(name[slow], key, is_first, place, start[slow]), known.steps)
    kept &= ~is_late
    slow, usual, is_first, kernel = slow[kept], usual[kept], is_first[kept], kernel[kept]
    rows = np.concatenate((slow, np.flatnonzero(grows)))
    kind, what = [], []
    names = trace.name_rows["name", "group"].rows()
    for row, first, of in zip(slow, is_first, kernel, strict=True):
        call, group = names[name[row]]
        found, text = _describe_call(
            call, group or "", names[of][0] if of >= 0 else None,
            is_first=bool(first),
            is_context=bool(start[row] < first_work and dur[row] >= _CONTEXT_NS),
        )  # fmt: skip
        kind.append(found)
        what.append(text)
    for row in np.flatnonzero(grows):
        kind.append(GROWTH)
        what.append(names[name[row]][0])
    usual = np.concatenate((usual, np.zeros(int(grows.sum()), np.int64)))
    return _table(trace, events[rows], usual, kind, what)


def _table(
    trace: Trace, events: Int64Array, usual_ns: Int64Array, kinds: list[str], what: list[str]
) -> pl.DataFrame:
    lanes = trace.columns("lane_id")["lane_id"].to_numpy()[events].astype(np.int32)
    columns = (events, lanes, *times_of(trace, events), usual_ns, kinds, what)
    return pl.DataFrame(dict(zip(ONE_OFFS, columns, strict=True)), schema=ONE_OFFS)


def _growth(
    known: _Known, events: Int64Array, name: Int64Array, start: Int64Array, dur: Int64Array
) -> BoolArray:
    """The allocations of the first steps, if later ones have none."""
    none = np.zeros(len(events), np.bool_)
    count = len(known.steps)
    if count < 3:
        return none
    is_allocation = (known.trace.name_rows["group"] == "allocation").fill_null(value=False)
    mine = is_allocation.to_numpy()[name]
    step = known.steps.of(start)
    mine &= (step >= 0) & (start < known.steps.ends[-1])
    if not mine.any() or 2 * (int(step[mine].max()) + 1) > count or dur[mine].sum() < FLOOR_NS:
        return none
    return mine


def _kinds(
    known: _Known, events: Int64Array, name: Int64Array, place: npt.NDArray[np.float64]
) -> tuple[Int64Array, BoolArray, Int64Array]:
    """For each call its key, whether it is the first with that key, and its kernel's name or -1."""
    kernel = np.full(len(events), -1, np.int64)
    is_first = place == 0
    key = -1 - name
    launched = known.work.filter(pl.col("launch").is_not_null())
    if not len(events) or launched.is_empty():
        return key, is_first, kernel
    columns = known.trace.columns("name_id", "start_ns")
    name_id = columns["name_id"].to_numpy()
    op = filled(launched["op"], -1)
    of_op = np.where(
        op >= 0, name_id[np.maximum(op, 0)].astype(np.int64), len(known.trace.name_rows)
    )
    launch = launched["launch"].to_numpy().astype(np.int64)
    of_kernel = launched["name_id"].to_numpy().astype(np.int64)
    of_key = of_kernel * (len(known.trace.name_rows) + 1) + of_op
    order = np.argsort(columns["start_ns"].to_numpy()[launch], kind="stable")
    _, first = np.unique(of_key[order], return_index=True)
    firsts = launch[order][first]
    by_launch = np.argsort(launch, kind="stable")
    at = np.minimum(np.searchsorted(launch[by_launch], events), len(launch) - 1)
    row = by_launch[at]
    has_work = launch[row] == events
    key = np.where(has_work, of_key[row], key)
    kernel = np.where(has_work, of_kernel[row], kernel)
    return key, np.where(has_work, np.isin(events, firsts), is_first), kernel


def _describe_call(
    call: str, group: str, kernel: str | None, *, is_first: bool, is_context: bool
) -> tuple[str, str]:
    if is_context and (group == "allocation" or "DeviceGet" in call or "Init" in call):
        return CONTEXT, call
    if group == "module_load":
        return MODULES, call
    if group == "launch" and "Graph" not in call:
        of = "" if kernel is None else f" of {kernel}"
        return MODULES, f"{'first ' if is_first else ''}{call}{of}"
    if group == "allocation":
        return GROWTH, call
    if "Create" in call or "Init" in call:
        return CREATION, call
    if group in ("graph", "launch"):
        return GRAPHS, call
    return OTHER_CALL, call


def _operators(known: _Known) -> pl.DataFrame:
    """Long stretches of operators that use the device, in which nothing else was recorded."""
    trace = known.trace
    columns = trace.columns("name_id", "lane_id", "start_ns", "dur_ns")
    dur_of, start_of = columns["dur_ns"].to_numpy(), columns["start_ns"].to_numpy()
    lane_of, name_of = columns["lane_id"].to_numpy(), columns["name_id"].to_numpy()
    is_op = names_that(trace, is_operator())
    is_own = names_that(trace, pl.col("name").str.starts_with(_OWN_OPERATOR))
    ops = np.flatnonzero(dur_of >= OPERATOR_FLOOR_NS)
    ops = ops[is_op[name_of[ops]] & (start_of[ops] >= known.known_from_ns)]
    if len(ops):
        own = trace.derived_of(pl.Series(ops), "self_ns")["self_ns"].to_numpy()
        ops = ops[own >= OPERATOR_FLOOR_NS]
    if len(ops):
        ops = ops[_number_inside(known, ops, events_named(trace, is_call())) > 0]
    rows: list[tuple[int, int, int, int, int, str, str]] = []
    parts = []
    for one in np.unique(name_of[ops]):
        like = events_with_names(trace, np.arange(len(is_op)) == one)
        mine = ops[name_of[ops] == one]
        is_like = ~np.isin(like, mine)
        if is_like.any():
            usual = round(float(np.median(dur_of[like[is_like]])))
        elif len(mine) == 1 and (len(known.steps) > 1 or is_own[one]):
            usual = 0
        else:
            continue
        begun = np.sort(start_of[like])
        for op, (start, end) in ((row, gap) for row in mine for gap in _own_gaps(known, row)):
            free = end - start - int(intervals.covered(known.busy, [start], [end])[0])
            if free >= max(OPERATOR_FLOOR_NS, TIMES * usual):
                place = float(np.searchsorted(begun, start_of[op])) / len(begun)
                parts.append((int(one), int(op), place))
                name = trace.name_rows["name"][int(one)]
                rows.append((int(op), int(lane_of[op]), start, end, 0, *_describe_operator(name)))
    if not rows:
        return pl.DataFrame(schema=ONE_OFFS)
    names, events, places = (np.array(column) for column in zip(*parts, strict=True))
    # Several stretches of one operator are one occurrence.
    slow = _Candidates(names, names, places == 0, places, start_of[events])
    kept = _do_not_recur(slow, known.steps, allows_few=False)
    return pl.DataFrame(rows, schema=ONE_OFFS, orient="row").filter(pl.Series(kept))


def _describe_operator(name: str) -> tuple[str, str]:
    if pl.Series([name]).str.contains(_PRODUCT)[0]:
        return FIRST_RUN, f"{name}: start-up of the BLAS library"
    if pl.Series([name]).str.contains(_CONVOLUTION)[0]:
        return SEARCH, f"{name}: start-up of the convolution library, or its search"
    return FIRST_RUN, name


def _own_gaps(known: _Known, op: np.int64) -> list[tuple[int, int]]:
    """The stretches of an operator of notable length in which nothing else lies."""
    start, end = (int(time[0]) for time in times_of(known.trace, np.array([op])))
    children = np.flatnonzero(known.trace.parents == op)
    gaps = intervals.complement(intervals.merge(*times_of(known.trace, children)), start, end)
    return [
        (int(first), int(last))
        for first, last in zip(gaps.starts, gaps.ends, strict=True)
        if last - first >= OPERATOR_FLOOR_NS
    ]


def _number_inside(known: _Known, outer: Int64Array, inner: Int64Array) -> Int64Array:
    """How many of some events begin within each of others, on the same thread."""
    columns = known.trace.columns("lane_id", "start_ns", "dur_ns")
    lane, start = columns["lane_id"].to_numpy(), columns["start_ns"].to_numpy()
    end = start + columns["dur_ns"].to_numpy()
    found = np.zeros(len(outer), np.int64)
    for one in distinct_groups(lane[outer]):
        rows = np.flatnonzero(lane[outer] == one)
        begun = np.sort(start[inner[lane[inner] == one]], kind="stable")
        found[rows] = np.searchsorted(begun, end[outer[rows]]) - np.searchsorted(
            begun, start[outer[rows]]
        )
    return found


def _searches(known: _Known) -> pl.DataFrame:
    trace = known.trace
    ops = events_named(trace, is_operator() & pl.col("name").str.contains(_CONVOLUTION))
    columns = trace.columns("name_id", "lane_id", "start_ns", "dur_ns")
    dur = columns["dur_ns"].to_numpy()[ops]
    if not (dur >= FLOOR_NS).any():
        return pl.DataFrame(schema=ONE_OFFS)
    launch = known.work["launch"].drop_nulls().unique().to_numpy().astype(np.int64)
    launches = _number_inside(known, ops, launch)
    waits = _number_inside(known, ops, events_named(trace, is_call() & (pl.col("group") == "sync")))
    name = columns["name_id"].to_numpy()[ops].astype(np.int64)
    start = columns["start_ns"].to_numpy()[ops]
    usual = np.zeros(len(ops), np.int64)
    place = np.zeros(len(ops), np.float64)
    searches = (dur >= FLOOR_NS) & (launches >= _SEARCH_LAUNCHES) & (start >= known.known_from_ns)
    for one in np.unique(name[searches]):
        mine = name == one
        few = mine & (launches < _SEARCH_LAUNCHES)
        more = waits >= _SEARCH_WAITS
        if few.any():
            more = more | (launches >= _SEARCH_TIMES * np.median(launches[few]))
            usual[mine] = round(float(np.median(dur[few])))
        searches &= ~mine | more
        place[mine] = np.searchsorted(np.sort(start[mine]), start[mine]) / int(mine.sum())
    rows = np.flatnonzero(searches)
    slow = _Candidates(name[rows], name[rows], place[rows] == 0, place[rows], start[rows])
    if len(known.steps) > 1:
        rows = rows[_do_not_recur(slow, known.steps)]
    names = trace.name_rows["name"]
    what = [names[int(name[row])] for row in rows]
    return _table(trace, ops[rows], usual[rows], [SEARCH] * len(rows), what)


def _autotuning(known: _Known) -> pl.DataFrame:
    """Stretches in which kernels are timed, to choose among their configurations."""
    trace = known.trace
    records = events_named(trace, is_call() & pl.col("name").str.contains(_RECORDS))
    launched = known.work.filter(pl.col("launch").is_not_null())
    if len(records) < TIMED or launched.is_empty():
        return pl.DataFrame(schema=ONE_OFFS)
    launches, first = np.unique(launched["launch"].to_numpy().astype(np.int64), return_index=True)
    kernels = launched["name_id"].to_numpy().astype(np.int64)[first]
    lane_of = trace.columns("lane_id")["lane_id"].to_numpy()
    waits = events_named(trace, is_call() & (pl.col("group") == "sync"))
    loads = events_named(trace, is_call() & (pl.col("group") == "module_load"))
    names = trace.name_rows["name"]
    rows: list[tuple[int, int, int, int, int, str, str]] = []
    keys, begun = [], []
    for lane in distinct_groups(lane_of[records]):
        mine = lane_of[launches] == lane
        found = _timed_stretches(
            trace,
            launches[mine],
            kernels[mine],
            *(some[lane_of[some] == lane] for some in (records, loads, waits)),
        )
        for event, kernel, start, end in found:
            if end - start >= FLOOR_NS and start >= known.known_from_ns:
                rows.append((event, int(lane), start, end, 0, AUTOTUNING, names[kernel]))
                keys.append(kernel)
                begun.append(start)
    if not rows:
        return pl.DataFrame(schema=ONE_OFFS)
    table = pl.DataFrame(rows, schema=ONE_OFFS, orient="row")
    if len(known.steps) < 2:
        return table
    key = np.array(keys, np.int64)
    is_first = np.array([one not in keys[:at] for at, one in enumerate(keys)])
    slow = _Candidates(key, key, is_first, np.zeros(len(key)), np.array(begun, np.int64))
    once = _do_not_recur(slow, known.steps)
    # What nothing else comes between from step to step recurs as well.
    once &= known.steps.of(slow.start) == known.steps.of(table["end_ns"].to_numpy() - 1)
    return table.filter(pl.Series(once))


def _timed_stretches(
    trace: Trace,
    launches: Int64Array,
    kernels: Int64Array,
    records: Int64Array,
    loads: Int64Array,
    waits: Int64Array,
) -> list[tuple[int, int, int, int]]:
    """The stretches of one thread: the first launch or load, the kernel, start and end.

    Args:
        launches: Calls that launch work, and its name for each.
        records: Calls that record events.
        loads: Calls that load modules.
        waits: Calls that wait for the device.
    """
    starts, ends = times_of(trace, launches)
    order = np.argsort(starts, kind="stable")
    launches, kernels, starts, ends = launches[order], kernels[order], starts[order], ends[order]
    if len(starts) < TIMED:
        return []
    marks = np.sort(times_of(trace, records)[0])
    count = np.searchsorted(marks, starts)
    load_starts, (wait_starts, wait_ends) = times_of(trace, loads)[0], times_of(trace, waits)
    between = np.diff(count) > 0
    timed = np.append(count[0] > 0, between) & np.append(between, len(marks) > count[-1])
    # The host waits for each measurement before the next one, of another kernel maybe.
    waited = np.diff(np.searchsorted(np.sort(wait_starts), starts)) > 0
    benches = [
        (first, last)
        for first, last in _runs(timed, np.flatnonzero(waited) + 1)
        if last - first >= TIMED and len(np.unique(kernels[first:last])) <= _MOST_TIMED_NAMES
    ]
    if not benches:
        return []
    measured = np.unique(np.concatenate([kernels[first:last] for first, last in benches]))
    is_clearing = names_that(trace, pl.col("name").str.contains(_CLEARS))
    found = []
    for first, last in _runs(np.isin(kernels, measured)):
        inside = [one for one in benches if first <= one[0] and one[1] <= last]
        if not inside:
            continue
        before = int(ends[first - 1]) if first else int(np.iinfo(np.int64).min)
        after = int(starts[last]) if last < len(starts) else int(np.iinfo(np.int64).max)
        event, start = int(launches[first]), int(starts[first])
        early = np.flatnonzero((load_starts >= before) & (load_starts < start))
        if len(early):
            event, start = int(loads[early[0]]), int(load_starts[early].min())
        end = int(ends[inside[-1][1] - 1])
        late = (wait_starts >= end) & (wait_starts < after)
        end = int(wait_ends[late].min()) if late.any() else end
        tried = kernels[inside[0][0] : inside[-1][1]]
        tried = tried[~is_clearing[tried]] if not is_clearing[tried].all() else tried
        ids, times = np.unique(tried, return_counts=True)
        found.append((event, int(ids[times.argmax()]), start, end))
    return found


def _runs(are: BoolArray, cuts: Int64Array | None = None) -> list[tuple[int, int]]:
    """The places at which runs of true values begin, and those after their ends.

    Args:
        cuts: Places at which a run ends and the next one begins.
    """
    edges = np.flatnonzero(np.diff(np.concatenate(([0], are.astype(np.int8), [0]))))
    found = [(int(first), int(last)) for first, last in edges.reshape(-1, 2)]
    if cuts is None:
        return found
    parts: list[tuple[int, int]] = []
    for first, last in found:
        inside = cuts[(cuts > first) & (cuts < last)].tolist()
        parts += pairwise([first, *inside, last])
    return parts
