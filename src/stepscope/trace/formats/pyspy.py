"""Reads py-spy recordings (`py-spy record --format chrometrace`, `speedscope`, `raw`) as functions.

A `chrometrace` is a bare list of beginnings and ends of frames, in microseconds since the start of
the recording, with one lane per pthread. The line of a frame is the one that ran when the frame was
first seen. It remains an argument rather than part of the name, which is `file: function`. With
`--threads`, the outermost frame of each thread is `thread (12901): MainThread`, which also gives
the lane its name. Other events are kept as they are.

A `speedscope` has the stacks of each thread one after the other, without the time in which it was
idle. They become the same beginnings and ends.

A `raw` has different stacks with the number of samples of each, and no order or rate. They are laid
one after the other, alike ones together, so only sums mean something. Without `--threads`, stacks
that begin in Python's threading are told apart by what their threads run, and the others are one
lane. How many samples there are in a second is in the manifest of a recording that Stepscope made;
else py-spy's default is assumed, and that is reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import orjson
import polars as pl

from stepscope.errors import StepscopeError, UnreadableInputError
from stepscope.run.layout import MANIFEST_FILE
from stepscope.run.manifest import ExternalRecord, read_record
from stepscope.trace.formats.chrome.reader import read_tables
from stepscope.trace.formats.event_names import renamed
from stepscope.trace.formats.trace_format import Input, TraceFormat
from stepscope.trace.schema import ARGS, EVENTS, LANES, Category
from stepscope.trace.source.content import Content
from stepscope.trace.tables import Tables

_BEGINNING = re.compile(rb'^\s*\[\s*\{[^{}]*(?:\{[^{}]*\}[^{}]*)?"cat"\s*:\s*"py-spy"')
_RAW_CATEGORY = "py-spy"
_THREAD = re.compile(r'(?:Process (\d{1,18}) )?Thread (\d{1,18}) "(.*)"$')
_SPEEDSCOPE = re.compile(rb"[\xef\xbb\xbf\s]*\{[^{]{0,4000}speedscope\.app/file-format-schema")
_NOT_OURS = "a profile of speedscope, not a trace; speedscope shows it"
_RAW_LINE = re.compile(rb"^[^\n]*\([^()\n;]*:\d+\)(?:;[^\n]*)? \d+\r?$", re.MULTILINE)
_RAW_THREAD = re.compile(r"thread \((0x[0-9A-Fa-f]{1,15}|\d{1,18})\)(?:: (.*))?$")
_RAW_PROCESS = re.compile(r'process (\d{1,18}):".*?"(?:;|$)')
_RAW_FRAME = re.compile(r"(.*) \((.*?)(?::(\d{1,9}))?\)$")
_RAW_THREADING = re.compile(r".* \((?:.*[/\\])?threading\.py:\d+\)$")
"""A frame at the bottom of every thread that Python began."""
_ALL_THREADS, _MAIN_THREAD = "all threads", "MainThread"
_MOST_DIGITS = 12
_Lane: TypeAlias = tuple[int, int | str]
"""A process, and the id of its thread or, where the file has none, what tells its stacks apart."""
_Stacks: TypeAlias = dict[_Lane, list[tuple[list[str], int]]]
_RATE = 100
"""Samples per second, unless py-spy is told otherwise."""
_THREAD_FRAME = r"^thread \([^)]*\)(?:: (.*))?$"


def read_pyspy(trace: Input) -> Tables:
    """Reads a `chrometrace`."""
    tables = read_tables(trace.name, trace.content, trace.problems)
    if not (tables.names["raw_category"] == _RAW_CATEGORY).any():
        raise UnreadableInputError(
            f"{trace.name}: has no py-spy frames; record with `py-spy record --format chrometrace`"
        )
    return _as_functions(tables)


def read_speedscope(trace: Input) -> Tables:
    """Reads a `speedscope`.

    Raises:
        UnreadableInputError: It is damaged, or another program's.
    """
    try:
        profile = orjson.loads(b"".join(trace.content))
        if not str(profile.get("exporter")).startswith(_RAW_CATEGORY):
            raise UnreadableInputError(f"{trace.name}: {_NOT_OURS}")
        events = list(_beginnings_and_ends(profile))
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise UnreadableInputError(
            f"{trace.name}: a damaged profile of speedscope ({error})"
        ) from error
    if not any(event["ph"] == "B" for event in events):
        raise UnreadableInputError(f"{trace.name}: a profile of speedscope without samples")
    content = Content([orjson.dumps(events)])
    return _as_functions(read_tables(trace.name, content, trace.problems))


def is_raw(beginning: bytes) -> bool:
    """Whether this is how a `raw` begins: lines end with counts, and frames have lines of code."""
    first = beginning.partition(b"\n")[0].rstrip()
    return first.rpartition(b" ")[2].isdigit() and _RAW_LINE.search(beginning) is not None


def read_raw(trace: Input) -> Tables:
    """Reads a `raw`.

    Raises:
        UnreadableInputError: It has no stack.
    """
    stacks: _Stacks = {}
    names: dict[_Lane, str] = {}
    bad = samples = 0
    for line in b"".join(trace.content).decode(errors="replace").splitlines():
        stack, _, count = line.rpartition(" ")
        if not stack or not (count.isascii() and count.isdigit() and len(count) < _MOST_DIGITS):
            bad += bool(line.strip())
            continue
        lane, name, frames = _lane_of(stack)
        samples += int(count)
        if frames:
            stacks.setdefault(lane, []).append((frames, int(count)))
            names[lane] = name or names.get(lane, "")  # a thread has none before it imports any
    if not stacks:
        raise UnreadableInputError(f"{trace.name}: stacks of py-spy without a frame")
    trace.problems.add("skipped", None, bad)
    rate = _rate_of(trace.plain_file)
    if rate is None:
        trace.problems.add("unknown_rate", None, samples)
    profile = _profile(stacks, names, rate or _RATE)
    content = Content([orjson.dumps(list(_beginnings_and_ends(profile)))])
    return _as_functions(read_tables(trace.name, content, trace.problems))


def _lane_of(stack: str) -> tuple[_Lane, str, list[str]]:
    """The lane of a stack, its name, and its frames."""
    process_id = 0
    while process := _RAW_PROCESS.match(stack):  # its parents come first
        process_id, stack = int(process[1]), stack[process.end() :]
    frames = stack.split(";") if stack else []
    if frames and (thread := _RAW_THREAD.match(frames[0])):
        return (process_id, int(thread[1], 0)), thread[2] or "", frames[1:]
    name = _ALL_THREADS
    if frames and _RAW_THREADING.match(frames[0]):
        what = next((frame for frame in frames if not _RAW_THREADING.match(frame)), frames[-1])
        name = f"threads in {_frame(what)['name']}"
    return (process_id, name), name, frames


def _profile(stacks: _Stacks, names: dict[_Lane, str], rate: float) -> dict[str, Any]:
    """The stacks as a `speedscope` has them."""
    numbers: dict[str, int] = {}
    profiles = []
    without_id: dict[int, list[int | str]] = {}
    for process_id, thread in stacks:
        if isinstance(thread, str):
            without_id.setdefault(process_id, []).append(thread)
    for (process_id, thread), found in stacks.items():
        name = names[process_id, thread]
        if thread == _ALL_THREADS and len(without_id[process_id]) > 1:
            name = _MAIN_THREAD  # those that Python began have lanes of their own
        thread_id = without_id[process_id].index(thread) if isinstance(thread, str) else thread
        found.sort()
        profiles.append(
            {
                "name": f'Process {process_id} Thread {thread_id} "{name}"',
                "startValue": 0,
                "samples": [
                    [numbers.setdefault(frame, len(numbers)) for frame in frames]
                    for frames, _ in found
                ],
                "weights": [count / rate for _, count in found],
            }
        )
    return {"shared": {"frames": list(map(_frame, numbers))}, "profiles": profiles}


def _frame(text: str) -> dict[str, Any]:
    found = _RAW_FRAME.match(text)
    if found is None:
        return {"name": text}
    return {"name": found[1], "file": found[2], "line": int(found[3] or 0)}


def _rate_of(file: Path | None) -> float | None:
    """The samples per second of a recording that Stepscope made; None if unknown."""
    if file is None:
        return None
    try:
        command = read_record(file.parent / MANIFEST_FILE, ExternalRecord).command
        return float(command[command.index("--rate") + 1]) or None
    except (StepscopeError, OSError, ValueError, IndexError):
        return None


def _beginnings_and_ends(profile: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The events that a `chrometrace` would have."""
    frames = profile["shared"]["frames"]
    for number, one in enumerate(profile["profiles"]):
        named = _THREAD.match(one["name"])
        lane = {"pid": 0, "tid": number}
        if named:
            lane = {"pid": int(named[1] or 0), "tid": int(named[2])}
        if name := named[3] if named else one["name"]:
            yield {"ph": "M", "name": "thread_name", "args": {"name": name}, "ts": 0, **lane}
        at, open_frames = float(one["startValue"]), list[int]()
        for stack, weight in zip(one["samples"], one["weights"], strict=True):
            same = 0
            for before, after in zip(open_frames, stack, strict=False):
                if before != after:
                    break
                same += 1
            yield from (_event("E", frames[index], at, lane) for index in open_frames[same:][::-1])
            yield from (_event("B", frames[index], at, lane) for index in stack[same:])
            open_frames = stack
            at += weight
        yield from (_event("E", frames[index], at, lane) for index in open_frames[::-1])


def _event(phase: str, frame: dict[str, Any], at_s: float, lane: dict[str, int]) -> dict[str, Any]:
    args = {"filename": frame.get("file") or "", "line": frame.get("line") or 0}
    about = {"cat": _RAW_CATEGORY, "name": frame["name"], "args": args}
    return {"ph": phase, "ts": round(at_s * 1e6), **about, **lane}


def _as_functions(tables: Tables) -> Tables:
    """Makes functions of frames, and names the lanes."""
    is_frame = pl.col("raw_category") == _RAW_CATEGORY
    file = pl.col("args").str.json_path_match("$.filename").fill_null("")
    events = (
        tables.events.drop("category")
        .join(tables.args, on="event", how="left", maintain_order="left")
        .join(tables.names.select("name_id", "name", "raw_category", "category"), on="name_id")
        # Frames first seen in the same sample start together. The outermost ends last, and events
        # are numbered by their ends.
        .sort("start_ns", "dur_ns", "event", descending=[False, True, True])
        .with_columns(
            pl.when(is_frame & (file != ""))
            .then(pl.format("{}: {}", file, "name"))
            .otherwise("name")
            .alias("name"),
            pl.when(is_frame)
            .then(pl.lit(Category.PYTHON_FUNCTION.value, EVENTS["category"]))
            .otherwise("category")
            .alias("category"),
        )
        .drop("event")
        .with_row_index("event")
    )
    names, events = renamed(tables.names, events)
    return replace(
        tables,
        events=events.select(pl.col(c).cast(dtype) for c, dtype in EVENTS.items()),
        args=events.select(pl.col(c).cast(dtype) for c, dtype in ARGS.items()),
        names=names,
        lanes=_lanes(tables, events),
    )


def _lanes(tables: Tables, events: pl.DataFrame) -> pl.DataFrame:
    """Returns the lanes, named after their outermost frames."""
    given = (
        events.select("lane_id", pl.col("name").str.extract(_THREAD_FRAME).alias("given"))
        .drop_nulls("given")
        .unique("lane_id", keep="first", maintain_order=True)
    )
    return tables.lanes.join(given, on="lane_id", how="left", maintain_order="left").select(
        pl.coalesce("thread_name", "given").alias("thread_name") if c == "thread_name" else c
        for c in LANES
    )


FORMAT = TraceFormat(
    name="py-spy",
    recognises=lambda beginning: _BEGINNING.match(beginning) is not None,
    read=read_pyspy,
)
"""`py-spy record --format chrometrace`."""

SPEEDSCOPE = TraceFormat(
    name="py-spy speedscope",
    recognises=lambda beginning: _SPEEDSCOPE.match(beginning) is not None,
    read=read_speedscope,
)
"""`py-spy record --format speedscope`."""

RAW = TraceFormat(name="py-spy raw", recognises=is_raw, read=read_raw)
"""`py-spy record --format raw`."""
