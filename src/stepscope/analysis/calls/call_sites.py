"""Where in the programme things happen: the outermost operator, and the line of Python.

The place of a kernel is the innermost module (`nn.Module: RMSNorm_3`, without its number) or
function of the user's code around its launch. Functions named `forward` stand for their module and
are passed over. On the backward's threads there are no frames: the place is that of the forward
operator.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analysis.calls.parents import parents_of_events
from stepscope.analysis.calls.recomputation import names_matching
from stepscope.analysis.selection.names import events_with_names, names_that
from stepscope.analysis.selection.scope import memoized
from stepscope.run.figures import percent
from stepscope.run.own_frames import OWN_FILE
from stepscope.trace.arrays.blockwise import gather
from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.arrays.nullable import filled, gathered, nullable
from stepscope.trace.classify import MATRIX_GROUPS, UNKNOWN_KERNEL
from stepscope.trace.derive.ancestors import highest, nearest_above, nearest_of
from stepscope.trace.model import Trace
from stepscope.trace.schema import Category, Kind

_AT_ONCE = 2**16
"""Events looked at in one go."""


class Spans(NamedTuple):
    """Some events."""

    event: Int64Array
    start: Int64Array
    end: Int64Array


def spans_where(
    trace: Trace, events: Int64Array, choose: Callable[[Int64Array, Int64Array], BoolArray]
) -> Spans:
    """Those of some events that a condition on starts and ends chooses, in the order given.

    Args:
        choose: Is given the starts and ends of one part of them after the other.
    """
    columns = trace.columns("start_ns", "dur_ns")
    starts, lengths = columns["start_ns"].to_numpy(), columns["dur_ns"].to_numpy()
    found = [Spans(events[:0], starts[:0], starts[:0])]
    for first in range(0, len(events), _AT_ONCE):
        some = events[first : first + _AT_ONCE]
        start = starts[some]
        end = start + lengths[some]
        chosen = choose(start, end)
        found.append(Spans(some[chosen], start[chosen], end[chosen]))
    return Spans(*(np.concatenate(column) for column in zip(*found, strict=True)))


_ENGINE = "autograd::engine::evaluate_function"
_LINE = r"\.py\(\d+\): "
_THREADS = "threading.py("
_WAITING = (
    r"<built-in (method|function) "
    r"(acquire|sleep|select|poll|wait\w*|recv\w*|read\w*|accept|pause|sigwait)\b"
)
_NEARLY_ALL = 0.9
_MOST_LEVELS = 256
"""Rows are walked up so many levels one by one; recorded calls are rarely nested as deeply."""
_LIBRARIES = r"^(torch|contextlib|functools|threading)[/.(]|^<|^nn\.Module"


def call_sites(trace: Trace, events: pl.Series) -> pl.DataFrame:
    """The place of each event, in the order given.

    Returns:
        event; operator, the outermost one around it (null: none); and frame, the innermost Python
        frame outside torch (null: none was recorded).
    """
    is_line, is_user = _lines(trace)
    name_id = trace.columns("name_id")["name_id"].to_numpy()
    parent = parents_of_events(trace)
    start = events.to_numpy()
    operator = outermost(start, parent, name_id, _are_operators(trace))
    user = nearest_above(parent, start, is_user[name_id])
    any_line = nearest_above(parent, start, is_line[name_id])
    frame = np.where(user >= 0, user, any_line)
    return pl.DataFrame(
        {
            "event": events.cast(pl.Int64),
            "operator": names_of_events(trace, nullable(operator, operator >= 0, "")),
            "frame": names_of_events(trace, nullable(frame, frame >= 0, "")),
        }
    )


@memoized
def _are_operators(trace: Trace) -> BoolArray:
    """Which names are of operators that a programme calls: not the engine, no step."""
    return names_that(
        trace,
        (pl.col("category") == Category.CPU_OP.value)
        & ~pl.col("name").str.starts_with(_ENGINE)
        & ~pl.col("name").str.starts_with("ProfilerStep"),
    )


@memoized
def _are_frames(trace: Trace) -> BoolArray:
    return names_that(trace, _is_frame())


@memoized
def _lines(trace: Trace) -> tuple[BoolArray, BoolArray]:
    """Which names are of lines of Python, and which of these are outside torch."""
    if not has_stacks(trace):
        return _are_frames(trace), _are_frames(trace)
    is_line = names_that(trace, _is_frame() & pl.col("name").str.contains(_LINE))
    is_library = pl.col("name").str.contains(_LIBRARIES) | pl.col("name").str.contains(OWN_FILE)
    return is_line, is_line & ~names_that(trace, is_library)


def outermost_operators(trace: Trace, events: pl.Series) -> pl.Series:
    """The outermost operator around each event, itself where nothing is around it."""
    name_id = trace.columns("name_id")["name_id"].to_numpy()
    parent = parents_of_events(trace)
    start = events.to_numpy()
    found = outermost(start, parent, name_id, _are_operators(trace))
    return pl.Series(np.where(found >= 0, found, start))


def outermost(
    events: Int64Array,
    parent: Int64Array,
    name_id: npt.NDArray[np.uint32],
    is_wanted: BoolArray,
) -> Int64Array:
    """The outermost event above each, or itself, whose name is wanted; -1: none."""
    found = np.where(is_wanted[name_id[events]], events, -1)
    above = parent[events]
    pending = np.nonzero(above >= 0)[0]
    for _ in range(_MOST_LEVELS):
        if not len(pending):
            return found
        here = above[pending]
        hit = is_wanted[name_id[here]]
        found[pending[hit]] = here[hit]
        above[pending] = parent[here]
        pending = pending[above[pending] >= 0]
    higher = highest(parent, is_wanted[name_id])[above[pending]]
    found[pending] = np.where(higher >= 0, higher, found[pending])
    return found


def has_stacks(trace: Trace) -> bool:
    """Whether Python frames were recorded."""
    return bool(_are_frames(trace).any())


def function_of(names: Sequence[str]) -> str | None:
    """The function that a thread is in, by the names of its Python frames, the innermost first.

    That is the innermost line of Python: what is built in, such as waiting for a lock, is named by
    who calls it, if that was recorded, and so is what Python's own module for threads does.
    """
    lines = [name for name in names if re.search(_LINE, name)]
    outside = [name for name in lines if not name.startswith(_THREADS)]
    # Where an object lies in memory tells nothing.
    others = (re.sub(r" object at 0x[0-9a-f]+", "", name) for name in names)
    return next(iter((*outside, *lines, *others)), None)


def is_waiting(names: Sequence[str]) -> bool:
    """Whether a thread is in a built-in function that sleeps or waits, by the names of its frames.

    For a lock, a socket, a file or a child process.
    """
    return bool(names) and re.match(_WAITING, names[0]) is not None


def names_over(trace: Trace, lane_id: int, start_ns: int, end_ns: int) -> tuple[str, ...]:
    """The Python frames of a thread that span nearly all of some time, the innermost first."""
    least = math.ceil(_NEARLY_ALL * (end_ns - start_ns))
    frames = spans_where(
        trace,
        events_with_names(trace, _are_frames(trace), [lane_id]),
        lambda start, end: np.minimum(end, end_ns) - np.maximum(start, start_ns) >= least,
    )
    innermost_first = np.lexsort((-frames.event, -frames.start, frames.end - frames.start))
    names = names_of_events(trace, pl.Series(frames.event[innermost_first]))
    return tuple(names.drop_nulls())


def frames_at(
    trace: Trace, lanes: Sequence[int | None], moments: Sequence[int]
) -> list[str | None]:
    """The innermost Python frame of a thread at a moment, for each pair of them; None: none."""
    if not has_stacks(trace):
        return [None] * len(moments)
    wanted = sorted({lane for lane in lanes if lane is not None})
    spans = (
        trace.events.filter(_is_frame(), pl.col("lane_id").is_in(wanted))
        .select("event", "lane_id", "start_ns", end_ns=pl.col("start_ns") + pl.col("dur_ns"))
        .collect()
    )
    found: list[int | None] = []
    for lane, moment in zip(lanes, moments, strict=True):
        around = spans.filter(
            pl.col("lane_id") == (-1 if lane is None else lane),
            pl.col("start_ns") <= moment,
            pl.col("end_ns") > moment,
        ).sort("start_ns", "event")
        found.append(int(around["event"][-1]) if len(around) else None)
    return names_of_events(trace, pl.Series(found, dtype=pl.Int64)).to_list()


def names_of_events(trace: Trace, events: pl.Series) -> pl.Series:
    """Names of some events; null for null."""
    ids = trace.columns("name_id")["name_id"]
    if events.is_empty() or ids.is_empty():
        return pl.Series([None] * len(events), dtype=pl.String)
    return gathered(trace.name_rows["name"], gathered(ids, events))


def _is_frame() -> pl.Expr:
    return pl.col("category") == Category.PYTHON_FUNCTION.value


_MODULE = "nn.Module: "
_PASSED_OVER = (
    r": (forward|backward|__call__|_call_impl|_wrapped_call_impl|wrapper|decorate_\w+|_fn)$"
)
_OF_LIBRARIES = r"^(torch|contextlib|functools|threading)[/.(]|^<"
_SOURCE = re.compile(r"(?:.*/)?(?P<file>[^/]+\.py)\((?P<line>\d+)\): (?P<function>.+)")


def is_of_product(trace: Trace, work: pl.DataFrame) -> BoolArray:
    """Which kernels belong to matrix products, convolutions and attention.

    By their own kind, or by that of the innermost operator around their launch: a library splits
    a product into several kernels, which add up partial results or fill in the bias.

    Args:
        work: GPU work with `group` and `op`.
    """
    found: BoolArray = filled(work["group"].cast(pl.String).is_in(MATRIX_GROUPS), value=False)
    is_product = names_that(
        trace,
        (pl.col("category") == Category.CPU_OP.value) & pl.col("group").is_in(MATRIX_GROUPS),
    )
    if not is_product.any():
        return found
    op = filled(work["op"], -1)
    name_id = trace.columns("name_id")["name_id"].to_numpy()
    found |= (op >= 0) & is_product[name_id[np.maximum(op, 0)]]
    return found


def is_kind_by_operator(trace: Trace, work: pl.DataFrame) -> BoolArray:
    """Which computing kernels have a name that no rule knows: their group is their operator's.

    Args:
        work: GPU work with `kind` and `name_id`.
    """
    is_unknown = names_that(trace, pl.col("group") == UNKNOWN_KERNEL)
    is_compute = filled(work["kind"] == Kind.COMPUTE.value, value=False)
    found: BoolArray = is_unknown[work["name_id"].to_numpy()] & is_compute
    return found


def sites_of_work(trace: Trace, work: pl.DataFrame) -> pl.Series:
    """Module or function around each launch, such as "RMSNorm"; null where no frame tells.

    Args:
        work: GPU work with `launch` and `op`.
    """
    names = trace.name_rows["name", "category"]
    is_frame = names["category"].cast(pl.String) == Category.PYTHON_FUNCTION.value
    if not is_frame.any():
        return pl.Series([None] * len(work), dtype=pl.String)
    text = names["name"].fill_null("")
    is_place = is_frame & (
        text.str.starts_with(_MODULE)
        | (
            text.str.contains(r"\.py\(\d+\): ")
            & ~text.str.contains(_OF_LIBRARIES)
            & ~text.str.contains(_PASSED_OVER)
        )
    )
    name_id = trace.columns("name_id")["name_id"].to_numpy()
    parent = parents_of_events(trace)
    is_place_of = gather(is_place.to_numpy(), name_id)
    begin = work.select(pl.coalesce("launch", "op").fill_null(-1)).to_series().to_numpy()
    found = nearest_of(parent, begin, is_place_of).astype(np.int64)
    missing = np.flatnonzero((found < 0) & (begin >= 0))
    if len(missing):
        forward = trace.derived_numbers("forward")
        of_backward = nearest_of(parent, begin[missing], forward.is_not_null().to_numpy())
        known = of_backward >= 0
        of_forward = forward.gather(of_backward[known]).to_numpy().astype(np.int64)
        found[missing[known]] = nearest_of(parent, of_forward, is_place_of)
    labels = {name: _label(name) for name in text.filter(is_place).unique().to_list()}
    said = names_of_events(trace, nullable(found, found >= 0, ""))
    return said.replace_strict(labels, default=None, return_dtype=pl.String)


def sites_of_calls(trace: Trace, events: pl.Series) -> pl.Series:
    """Module and Python line around some host events: "Sampler, draw (sampler.py:88)".

    Null where no stack was recorded.
    """
    frames = call_sites(trace, events)["frame"]
    around = sites_of_work(
        trace,
        pl.DataFrame({"launch": events, "op": pl.Series([None] * len(events), dtype=pl.Int64)}),
    )
    found = []
    for frame, module in zip(frames, around, strict=True):
        line = None if frame is None else _label(frame)
        parts = [part for part in (module, line) if part is not None]
        found.append(", ".join(dict.fromkeys(parts)) or None)
    return pl.Series(found, dtype=pl.String)


def runs_under(trace: Trace, work: pl.DataFrame, pattern: str) -> BoolArray:
    """Whether the operator of each kernel, or one around it, has a name that matches."""
    matching = names_matching(trace, pattern, Category.CPU_OP)
    name_id = trace.columns("name_id")["name_id"].to_numpy()
    parent = parents_of_events(trace)
    operator = filled(work["op"], -1)
    found: BoolArray = nearest_of(parent, operator, gather(matching, name_id)) >= 0
    return found


def shares_of(labels: pl.Series, dur_ns: pl.Series, most: int = 4) -> str:
    """The labels that take most of some time: "aten::mul 41%, aten::cat 22%"; without nulls."""
    whole = max(1, int(dur_ns.sum()))
    table = (
        pl.DataFrame({"label": labels, "dur_ns": dur_ns})
        .drop_nulls("label")
        .group_by("label")
        .agg(pl.col("dur_ns").sum())
        .sort("dur_ns", "label", descending=[True, False])
        .head(most)
    )
    return ", ".join(f"{label} {percent(total / whole)}" for label, total in table.iter_rows())


def _label(name: str) -> str:
    if name.startswith(_MODULE):
        return re.sub(r"_\d+$", "", name.removeprefix(_MODULE))
    line = _SOURCE.fullmatch(name)
    return name if line is None else f"{line['function']} ({line['file']}:{line['line']})"
