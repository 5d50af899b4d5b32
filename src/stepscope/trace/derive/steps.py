"""Finds the steps of a trace, on the host clock and on each device's clock.

Definitions
    Host step N lasts from the start of its annotation to the start of the next; the last step ends
    with its own annotation. If the recording marks that no step follows (`stepscope.no_step#N`, for
    an evaluation or the time between epochs), the step ends there. Annotations are
    `ProfilerStep#N`; if a trace has none, annotations such as `iteration 12` or `step=12` are used.
    If it has none of these either, steps are found by what the main thread repeats, such as
    `Optimizer.step` (see `unannotated_steps.py`). If several threads have annotations, the thread
    with the most steps counts, and among those the earliest. Steps divide that thread's time;
    events on any thread belong to the step in which they start.

    Device step N lasts, on each device, from the end of the GPU work launched in earlier steps to
    the end of the work launched up to step N (a running maximum). The first step, and a step that
    follows a time outside any step, does not start before its host step. A device without any
    linked work uses the host steps instead. Both kinds of step partition their clock, so nothing is
    counted twice when the host runs ahead. Ends are those of `overruns.py`, so that no impossible
    duration moves a step. If the work of the first steps was lost, though not their launches, these
    use the host steps, and the next one is the first.

    Work that was launched before the recording began may not be in the file. If a call waits for
    the device before any GPU work is recorded, such work ends when the call returns, and the first
    device step begins then. So it does where the first call that frees memory waits for longer than
    recorded work lasts (`unrecorded_work.py`). If the first work of the device waits in the queue
    although nothing recorded keeps the device busy, the start of its step is unknown
    (`is_start_known`), and it begins with that work: what lies before is unknown, not idle.

    A step is empty if no operator starts and no GPU work is launched in it. Torch leaves such a
    step at the end if the profiler stops right after a step started. Python functions count as
    work, except in the last step if other steps have operators: those belong to the profiler and
    the end of the loop. A step is complete unless it is empty. In a file that lacks its end
    (`problems.lacks_end`), the next step must be there too: it tells where a step ends.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.arrays.nullable import distinct, filled
from stepscope.trace.categories import code_of
from stepscope.trace.derive.unannotated_steps import unannotated_steps
from stepscope.trace.problems import lacks_end
from stepscope.trace.schema import DEVICE_STEPS, HOST_STEPS, Category, StepSource
from stepscope.trace.tables import Tables

STEP_PATTERNS = (
    r"^ProfilerStep\s*#(\d{1,9})$",
    r"(?i)^(?:train(?:ing)?[ _]?|global[ _]?)?(?:iteration|iter|step)[ _#:=/]*(\d{1,9})$",
)
"""Patterns of step annotations, most reliable first. The group is the number of the step."""

_ANNOTATIONS = (Category.USER_ANNOTATION, Category.CPU_OP, Category.OTHER)
_WORK_ON_HOST = (Category.CPU_OP, Category.RUNTIME, Category.DRIVER)
_NO_STEP = "stepscope.no_step#"
_ROWS_AT_ONCE = 100_000
_LONG_BEFORE_NS = 100_000  # longer than an idle device takes to begin
_LONG_BEFORE = 0.05  # of the median step
_EARLIEST_NS = int(np.iinfo(np.int64).min)


def host_steps(tables: Tables) -> pl.DataFrame:
    """Returns the host steps, with the columns of `schema.HOST_STEPS`."""
    return steps_and_places(tables)[0]


def steps_and_places(
    tables: Tables, host: pl.DataFrame | None = None
) -> tuple[pl.DataFrame, npt.NDArray[np.int32]]:
    """Returns the host steps, and for each event the index of the one in which it starts, or -1.

    Args:
        host: The host steps, if already known.
    """
    starts = tables.events["start_ns"].to_numpy()
    if host is not None:
        return host, step_at(host, starts)
    marks = _marks(tables)
    steps = unannotated_steps(tables) if marks.is_empty() else _annotated(tables, marks)
    index = step_at(steps, starts)
    if steps.is_empty():
        return pl.DataFrame(schema=HOST_STEPS), index
    empty = ~_has_work(tables, steps, index)
    complete = ~empty
    if lacks_end(tables.problems, tables.names):
        complete &= _is_followed(steps)
    found = steps.with_columns(
        pl.Series("is_empty", empty), pl.Series("is_complete", complete)
    ).select(pl.col(column).cast(dtype) for column, dtype in HOST_STEPS.items())
    return found, index


def _annotated(tables: Tables, marks: pl.DataFrame) -> pl.DataFrame:
    main = (
        marks.group_by("lane_id")
        .agg(pl.col("step").n_unique().alias("steps"), pl.col("start_ns").min())
        .sort("steps", "start_ns", "lane_id", descending=[True, False, False])["lane_id"][0]
    )
    annotation_end = pl.col("start_ns") + pl.col("dur_ns")
    steps = (
        marks.filter(pl.col("lane_id") == main)
        .sort("start_ns", "dur_ns", "event", descending=[False, True, False])
        .unique("step", keep="first", maintain_order=True)
        .with_columns(
            annotation_end.alias("annotation_end_ns"),
            pl.col("start_ns").shift(-1).fill_null(annotation_end).alias("end_ns"),
        )
    )
    if lacks_end(tables.problems, tables.names):
        # The next annotation in the file need not be the one that followed.
        ends = pl.when(pl.Series(_is_followed(steps))).then("end_ns").otherwise("annotation_end_ns")
        steps = steps.with_columns(end_ns=ends)
    return steps.with_columns(
        end_ns=pl.Series(_ends_at_breaks(tables, steps)),
        source=pl.lit(StepSource.ANNOTATION.value),
    )


def _is_followed(steps: pl.DataFrame) -> npt.NDArray[np.bool_]:
    """For each step, whether the next one is in the file, which tells where it ends."""
    followed: npt.NDArray[np.bool_] = np.append(np.diff(steps["step"].to_numpy()) == 1, False)
    return followed


def _marks(tables: Tables) -> pl.DataFrame:
    names = tables.names.filter(
        pl.col("category").cast(pl.String).is_in([c.value for c in _ANNOTATIONS])
    )
    for pattern in STEP_PATTERNS:
        numbers = names.select(
            "name_id", pl.col("name").str.extract(pattern).cast(pl.Int32).alias("step")
        ).drop_nulls()
        if numbers.is_empty():
            continue
        marks = tables.events.filter(pl.col("name_id").is_in(numbers["name_id"].implode()))[
            "event", "name_id", "lane_id", "start_ns", "dur_ns"
        ].join(numbers, on="name_id")
        if not marks.is_empty():
            return marks
    return pl.DataFrame()


def _ends_at_breaks(tables: Tables, steps: pl.DataFrame) -> Int64Array:
    """Returns the ends of the steps, moved to where the recording marks that no step follows."""
    ends: Int64Array = steps["end_ns"].to_numpy()
    names = tables.names.filter(pl.col("name").str.starts_with(_NO_STEP))["name_id"]
    if names.is_empty():
        return ends
    breaks = (
        tables.events.filter(
            pl.col("name_id").is_in(names.implode()), pl.col("lane_id") == steps["lane_id"][0]
        )["start_ns"]
        .sort()
        .to_numpy()
    )
    following = np.append(breaks, np.iinfo(np.int64).max)
    next_break = following[np.searchsorted(breaks, steps["start_ns"].to_numpy(), side="right")]
    moved: Int64Array = np.minimum(ends, next_break)
    return moved


def step_names(tables: Tables) -> npt.NDArray[np.bool_]:
    """For each name, whether it annotates a step."""
    found: npt.NDArray[np.bool_] = filled(tables.names["group"] == "profiler_step", value=False)
    return found


def _has_work(
    tables: Tables, steps: pl.DataFrame, index: npt.NDArray[np.int32]
) -> npt.NDArray[np.bool_]:
    """For each step, whether any work starts in it; annotations of steps are no work.

    Args:
        index: The index of the step in which each event starts; -1 for none.
    """
    is_step, name_id = step_names(tables), tables.events["name_id"].to_numpy()
    code = tables.events["category"].to_physical().to_numpy()
    begun = np.zeros((len(Category), len(steps) + 1), np.int64)
    for some in _parts(len(code)):
        # A number for each pair of category and step. What annotates a step counts in none.
        step = np.where(is_step[name_id[some]], 0, index[some] + 1)
        pair = code[some].astype(np.int64) * (len(steps) + 1) + step
        begun += np.bincount(pair, minlength=begun.size).reshape(begun.shape)
    of_steps = np.unique(steps["event"].to_numpy())
    marking = of_steps[~is_step[name_id[of_steps]]]
    np.subtract.at(begun, (code[marking], index[marking] + 1), 1)

    def begins(categories: tuple[Category, ...]) -> npt.NDArray[np.bool_]:
        codes = [code_of(category) for category in categories]
        found: npt.NDArray[np.bool_] = begun[codes, 1:].sum(axis=0) > 0
        return found

    has_operators, has_python = begins(_WORK_ON_HOST), begins((Category.PYTHON_FUNCTION,))
    if has_operators.any():
        has_python[-1] = False
    return has_operators | has_python


def step_at(steps: pl.DataFrame, times: Int64Array) -> npt.NDArray[np.int32]:
    """Returns the index of the step that contains each time; -1 for none.

    Steps of length 0 contain nothing.
    """
    found = np.full(len(times), -1, np.int32)
    if steps.is_empty():
        return found
    starts, ends = steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy()
    for some in _parts(len(times)):
        index = np.searchsorted(starts, times[some], "right") - 1
        inside = (index >= 0) & (times[some] < ends[index])
        np.copyto(found[some], index, where=inside, casting="same_kind")
    return found


def _parts(rows: int) -> Iterator[slice]:
    """Divides rows into parts whose columns stay in the processor's cache."""
    for first in range(0, rows, _ROWS_AT_ONCE):
        yield slice(first, first + _ROWS_AT_ONCE)


def device_steps(
    work: pl.DataFrame,
    host: pl.DataFrame,
    blocked_until_ns: int = _EARLIEST_NS,
    lost_in: Int64Array | None = None,
) -> pl.DataFrame:
    """Returns the device steps, with the columns of `schema.DEVICE_STEPS`.

    Args:
        work: The GPU work: device, lane_id, start_ns, end_ns; launch_step, the index in `host` of
            the step that launched it, -1 if unknown or outside any step; handed_over_ns, when the
            launching call returned or, of a copy that blocks, began (null: no call is known).
        blocked_until_ns: Until when a call waited for work that was not recorded.
        lost_in: The steps, as indices in `host`, of launches whose work was not recorded.
    """
    work = work.filter(pl.col("device").is_not_null()) if work["device"].has_nulls() else work
    devices = distinct(work["device"]).tolist()
    if host.is_empty() or not devices:
        return pl.DataFrame(schema=DEVICE_STEPS)
    device, lane = work["device"].to_numpy(), work["lane_id"].to_numpy()
    start, end = work["start_ns"].to_numpy(), work["end_ns"].to_numpy()
    launch_step = work["launch_step"].to_numpy()
    linked = launch_step >= 0
    parts = []
    for number in devices:
        mine = linked & (device == number)
        starts, ends = host["start_ns"].to_numpy(), host["end_ns"].to_numpy()
        is_linked = bool(mine.any())
        is_start_known, first = True, 0
        if is_linked:
            follows = np.concatenate(([False], ends[:-1] == starts[1:]))
            if lost_in is not None and (lost_in < launch_step[mine].min()).any():
                first = int(launch_step[mine].min())
            follows[: first + 1] = False
            least = np.where(follows, starts[0], starts)
            other = ~linked & (device == number)
            for step in first + np.flatnonzero(~follows[first:]):
                own = mine & (launch_step == step)
                least[step] = max(starts[step], _backlog_end(start, end, lane, own, other))
            latest = np.concatenate((ends[:first], least[first:]))
            np.maximum.at(latest, launch_step[mine], end[mine])
            ends = np.maximum.accumulate(latest)
            lengths = np.diff(ends[first:], prepend=least[first])
            limit_ns = max(_LONG_BEFORE_NS, int(_LONG_BEFORE * np.median(lengths)))
            mine_by_time = work.filter(device == number).sort("start_ns")
            if _waited_for_unrecorded_work(mine_by_time, first, limit_ns):
                is_start_known = False
                least[first] = start[mine & (launch_step == first)].min()
            elif blocked_until_ns < ends[first]:
                least[first] = max(least[first], blocked_until_ns)
            starts = np.maximum(least, np.concatenate((starts[:1], ends[:-1])))
        parts.append(
            pl.DataFrame(
                {
                    "device": np.full(len(host), number),
                    "step": host["step"],
                    "start_ns": starts,
                    "end_ns": ends,
                    "is_linked": np.full(len(host), is_linked),
                    "is_start_known": np.arange(len(host)) > (-1 if is_start_known else first),
                }
            ).select(pl.col(column).cast(dtype) for column, dtype in DEVICE_STEPS.items())
        )
    return pl.concat(parts)


def _waited_for_unrecorded_work(work: pl.DataFrame, step: int, limit_ns: int) -> bool:
    """Whether the first work of a device waited in the queue for nothing recorded.

    Args:
        work: The work of the device, by start.
        step: The first step.
        limit_ns: What is too short to matter.
    """
    own = work.filter(pl.col("launch_step") == step)
    if own.is_empty() or own["handed_over_ns"][0] is None:
        return False
    begun_ns, handed_over_ns = own["start_ns"][0], own["handed_over_ns"][0]
    if begun_ns - handed_over_ns <= limit_ns:
        return False
    before = work.filter(pl.col("start_ns") < begun_ns)
    return not (before["end_ns"] > handed_over_ns).any()


def _backlog_end(
    start: Int64Array,
    end: Int64Array,
    lane: npt.NDArray[np.uint32],
    own: npt.NDArray[np.bool_],
    other: npt.NDArray[np.bool_],
) -> int:
    """Returns when the work that a device still had to do before a step ended.

    The earliest time there is if it had none: times can be negative.

    A step may copy its input on one stream while another is still busy with earlier work. A stream
    works in order, so what it did before its first work of the step is earlier work, if all its
    later work has a launch. If it has not, launches are missing, and nothing is known.

    Args:
        own: The work that the step launched.
        other: The work that no step launched. What outlasts the step's own work is no backlog.
    """
    if not own.any():
        return _EARLIEST_NS
    earlier = start < start[own].min()
    streams = int(lane.max()) + 1
    first = np.full(streams, _EARLIEST_NS)
    first[lane[own]] = np.iinfo(np.int64).max
    np.minimum.at(first, lane[own], start[own])
    last = np.full(streams, _EARLIEST_NS)
    np.maximum.at(last, lane[other], start[other])
    earlier |= (last < first)[lane]
    backlog = other & earlier & (end <= end[own].max())
    return int(end[backlog].max()) if backlog.any() else _EARLIEST_NS
