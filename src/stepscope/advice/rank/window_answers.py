"""Answers the questions about a window that a page shows: reads its trace, once.

The step that it draws is the steady one whose duration is nearest to the median. The lanes are, on
a GPU, why it was idle and what ran on each stream within the device step; then the main thread's
ranges and operators in the same time, and the operators of the busiest other threads. Without GPU
work it is the host step and its threads. Of what is nested only the outermost is drawn.

A step can have a hundred thousand events, and a picture a few hundred shapes. The longest slices of
all lanes are drawn one by one; what the others of a lane cover is a share of each bucket of time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from stepscope.advice.rank.window_details import (
    BUCKETS,
    MOST_ROWS,
    TABLES,
    DetailedAnswer,
    Recording,
    Slice,
    StepLane,
    TypicalStep,
    WindowDetails,
)
from stepscope.analysis.contents import recorder_of
from stepscope.analysis.host.idle_gaps import idle_segments
from stepscope.analysis.questions import question
from stepscope.analysis.selection.rows import Beginning, tables_in
from stepscope.analysis.selection.scope import Scope
from stepscope.errors import StepscopeError
from stepscope.run.step_record import SHOWN_RANGES
from stepscope.terminal.plain_text import shorten_name
from stepscope.terminal.working import working
from stepscope.trace.arrays.intervals import clip, covered, merge
from stepscope.trace.load import load
from stepscope.trace.model import Trace
from stepscope.trace.schema import Category, Kind


def answer_window(path: Path, asked: Scope, steady: tuple[int, ...]) -> WindowDetails:
    """The details of a window.

    Args:
        steady: Its steady steps, of which one is drawn.
    """
    trace = load(path)
    recorder = recorder_of(trace)
    found = [_answer(name, trace, asked) for name in TABLES]
    return WindowDetails(
        recording=Recording(
            path=trace.path,
            producer=recorder.producer,
            accelerator=recorder.accelerator,
            gpus=_gpus_with_events(trace),
            backend=recorder.backend,
            header=recorder.header,
        ),
        answers=tuple(one for one in found if isinstance(one, DetailedAnswer)),
        notes=tuple(one for one in found if isinstance(one, str)),
        step=typical_step(trace, steady),
    )


def _answer(name: str, trace: Trace, asked: Scope) -> DetailedAnswer | str:
    try:
        with working(f"Answering {name}"):
            result = question(name).ask(trace, asked)
    except StepscopeError as error:
        return f"{name}: {error}"
    found = tables_in(result)
    tables = {
        field: Beginning.of(found[field].select(columns), MOST_ROWS)
        for field, columns in TABLES[name].items()
    }
    return DetailedAnswer(name, tables, result.scope, tuple(result.notes))


def _gpus_with_events(trace: Trace) -> tuple[str, ...]:
    events = np.bincount(trace.columns("lane_id")["lane_id"].to_numpy(), minlength=len(trace.lanes))
    used = trace.lanes["device"].filter(pl.Series(events > 0))
    names = trace.devices.filter(pl.col("device").is_in(used.drop_nulls().implode()))["name"]
    return tuple(names.drop_nulls().unique().sort())


MOST_SLICES = 300
MOST_STREAMS = 6
OTHER_THREADS = 2
_NARROWEST = 1 / 3000
"""Of the step: a narrower slice is no more than a hair in the picture."""
_LONGEST_NAME = 200
_DESCRIBED = re.compile(r"thread (\d+) \((.+)\)")
"""How the profiler of torch names a thread: its number, and what the system calls it."""


def typical_step(trace: Trace, steady: Sequence[int]) -> TypicalStep | None:
    """The steady step that is nearest to the median.

    Args:
        steady: The steady steps; empty: all that are complete count.

    Returns:
        None without a step.
    """
    on_device = trace.device_steps
    if len(on_device):
        on_device = on_device.filter(pl.col("device") == on_device["device"][0])
    whole = trace.steps.filter(pl.col("is_complete") & ~pl.col("is_empty"))
    usable = on_device.join(whole, on="step", how="semi") if len(on_device) else whole
    chosen = usable.filter(pl.col("step").is_in(list(steady)))
    row = _nearest_to_median(usable if chosen.is_empty() else chosen)
    if row is None:
        return None
    start_ns, end_ns = row["start_ns"], row["end_ns"]
    device = row.get("device")
    events = _events(trace, start_ns, end_ns)
    found: list[tuple[str, pl.DataFrame]] = []
    if device is not None:
        found += [("GPU idle", _idle(trace, device, start_ns, end_ns)), *_streams(events, device)]
    found += _threads(trace, events, row["step"])
    lanes = _drawn([(title, rows) for title, rows in found if len(rows)], start_ns, end_ns)
    return TypicalStep(row["step"], device, end_ns - start_ns, lanes) if lanes else None


def _nearest_to_median(steps: pl.DataFrame) -> dict[str, int] | None:
    if steps.is_empty():
        return None
    lasting = pl.col("end_ns") - pl.col("start_ns")
    timed = steps.with_columns(lasting=lasting).filter(pl.col("lasting") > 0)
    if timed.is_empty():
        return None
    median = float(np.median(timed["lasting"].to_numpy()))
    return timed.sort((pl.col("lasting") - median).abs(), "step").row(0, named=True)


def _events(trace: Trace, start_ns: int, end_ns: int) -> pl.DataFrame:
    """What overlaps the step, cut to it: lane_id, device, stream, category, kind, name, times."""
    names = trace.names.select("name_id", "name")
    times = trace.columns("start_ns", "dur_ns")
    starts, lengths = times["start_ns"].to_numpy(), times["dur_ns"].to_numpy()
    overlaps = (starts < end_ns) & (starts + lengths > start_ns) & (lengths > 0)
    rows = np.flatnonzero(overlaps)
    # A step is a small part of the trace: only the stretch of the file that holds it is read.
    first, last = (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 0)
    stretch = [
        table.slice(first, last - first) for table in (trace.events, trace.derived.select("kind"))
    ]
    return (
        pl.concat(stretch, how="horizontal")
        .filter(pl.Series(overlaps[first:last]))
        .join(names, on="name_id", how="left", maintain_order="left")
        .select(
            "lane_id", "device", "stream",
            name=pl.col("name").replace(SHOWN_RANGES),
            category=pl.col("category").cast(pl.String),
            kind=pl.col("kind").cast(pl.String),
            start_ns=pl.max_horizontal("start_ns", pl.lit(start_ns)),
            end_ns=pl.min_horizontal(pl.col("start_ns") + pl.col("dur_ns"), pl.lit(end_ns)),
        )
        .sort("start_ns", "end_ns", descending=[False, True], maintain_order=True)
        .collect()
    )  # fmt: skip


def _idle(trace: Trace, device: int, start_ns: int, end_ns: int) -> pl.DataFrame:
    segments = idle_segments(trace).filter(
        (pl.col("device") == device) & (pl.col("start_ns") < end_ns) & (pl.col("end_ns") > start_ns)
    )
    cause = pl.col("cause").cast(pl.String)
    return segments.select(
        name=pl.lit("idle: ") + cause.str.replace_all("_", " "),
        what=pl.lit("idle_") + cause,
        start_ns=pl.col("start_ns").clip(start_ns, end_ns),
        end_ns=pl.col("end_ns").clip(start_ns, end_ns),
    )


def _streams(events: pl.DataFrame, device: int) -> list[tuple[str, pl.DataFrame]]:
    """The streams of the device with the most work, in order of their numbers."""
    work = events.filter((pl.col("device") == device) & (pl.col("kind") != Kind.NONE.value))
    busy = work.group_by("stream").agg((pl.col("end_ns") - pl.col("start_ns")).sum().alias("busy"))
    kept = sorted(
        busy.sort("busy", "stream", descending=[True, False])["stream"]
        .drop_nulls()
        .head(MOST_STREAMS)
    )
    return [
        (f"stream {stream}", work.filter(pl.col("stream") == stream).with_columns(what="kind"))
        for stream in kept
    ]


def _threads(trace: Trace, events: pl.DataFrame, step: int) -> list[tuple[str, pl.DataFrame]]:
    host = events.filter(pl.col("kind") == Kind.NONE.value).with_columns(what="category")
    main = host.filter(pl.col("lane_id") == trace.main_lane)
    is_the_step = pl.col("name").str.contains(rf"(?i)step\s*#?{step}$")
    ranges = main.filter((pl.col("category") == Category.USER_ANNOTATION.value) & ~is_the_step)
    is_op = pl.col("category") == Category.CPU_OP.value
    others = host.filter(is_op & (pl.col("lane_id") != trace.main_lane))
    busy = others.group_by("lane_id").agg(
        (pl.col("end_ns") - pl.col("start_ns")).sum().alias("busy")
    )
    kept = busy.sort("busy", "lane_id", descending=[True, False])["lane_id"].head(OTHER_THREADS)
    lanes = trace.lanes.select("lane_id", "thread_name", "tid").iter_rows()
    named = {lane: (name, tid) for lane, name, tid in lanes}
    return [
        ("main thread: ranges", _outermost(ranges)),
        ("main thread: operators", _outermost(main.filter(is_op))),
        *(
            (f"{thread_title(*named[lane])}: operators", _outermost(rows))
            for lane in sorted(kept)
            if len(rows := others.filter(pl.col("lane_id") == lane))
        ),
    ]


def thread_title(name: str | None, tid: int) -> str:
    """What a lane of a thread is called, in few letters.

    Args:
        name: The name that the trace gives it, if any.
    """
    described = _DESCRIBED.fullmatch(name or f"thread {tid}")
    if described is None:
        return name or f"thread {tid}"
    number, given = described.groups()
    # Every thread without a name of its own bears the interpreter's.
    return f"thread {number}" if given.startswith("python") else given


def _outermost(rows: pl.DataFrame) -> pl.DataFrame:
    """What lies in no other row; rows are in order of their starts, the longest first."""
    before = pl.col("end_ns").cum_max().shift().fill_null(np.iinfo(np.int64).min)
    return rows.filter(pl.col("end_ns") > before)


def _drawn(
    found: Sequence[tuple[str, pl.DataFrame]], start_ns: int, end_ns: int
) -> tuple[StepLane, ...]:
    lasting = [(rows["end_ns"] - rows["start_ns"]).to_numpy().astype(np.int64) for _, rows in found]
    if not lasting:
        return ()
    together = np.sort(np.concatenate(lasting))[::-1]
    least = max((end_ns - start_ns) * _NARROWEST, 1.0)
    if len(together) > MOST_SLICES:
        # Of equal ones at the limit all are left to the rest, so that there are never more.
        least = max(least, float(together[MOST_SLICES]) + 1)
    return tuple(
        _lane(title, rows, rows_ns >= least, start_ns, end_ns)
        for (title, rows), rows_ns in zip(found, lasting, strict=True)
    )


def _lane(
    title: str, rows: pl.DataFrame, is_drawn: np.ndarray, start_ns: int, end_ns: int
) -> StepLane:
    drawn, rest = rows.filter(pl.Series(is_drawn)), rows.filter(pl.Series(~is_drawn))
    slices = tuple(
        Slice(row["start_ns"] - start_ns, row["end_ns"] - row["start_ns"],
              shorten_name(row["name"] or "", _LONGEST_NAME), row["what"])
        for row in drawn.iter_rows(named=True)
    )  # fmt: skip
    if rest.is_empty():
        return StepLane(title, slices, (), "", 0)
    edges = start_ns + (end_ns - start_ns) * np.arange(BUCKETS + 1, dtype=np.int64) // BUCKETS
    busy = clip(merge(rest["start_ns"], rest["end_ns"]), start_ns, end_ns)
    share = covered(busy, edges[:-1], edges[1:]) / np.maximum(np.diff(edges), 1)
    most = rest.group_by("what").agg((pl.col("end_ns") - pl.col("start_ns")).sum().alias("ns"))
    what = most.sort("ns", "what", descending=[True, False])["what"][0]
    return StepLane(title, slices, tuple(np.round(share, 4).tolist()), what, len(rest))
