"""Outputs of verbs, cached in the store of the trace that they are about.

An answer about a large trace takes seconds, and its text is small. The text is cached under a key
that stands for everything it depends on: the traces, the question, the layout, the terminal and the
code. The same command then prints it without opening a trace, and without importing polars.

Nothing is cached for standard input, a URL or a trace without a store, nor in a store that cannot
be written. A text from a store is only ever printed, and only if it has no control characters other
than line ends and, on a terminal, colours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from stepscope.output_cache.recording_sink import EncodedSink, RecordingSink
from stepscope.report.outputs import TABLE, Layout, Output, Sink
from stepscope.run.layout import METRICS_RECORD_FILE
from stepscope.run.regular_files import is_regular
from stepscope.trace.paths import STANDARD_INPUT, TraceRef
from stepscope.trace.store.cached_answers import MOST_BYTES
from stepscope.trace.store.cached_values import CachedValue
from stepscope.trace.store.origin import key_of
from stepscope.trace.store.values import to_json

_ROOMS = (
    "stepscope.advice", "stepscope.analysis", "stepscope.commands", "stepscope.fleet",
    "stepscope.memory", "stepscope.output_cache", "stepscope.report", "stepscope.run",
    "stepscope.trace",
)  # fmt: skip
"""Packages whose code decides what is printed."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class CachedText:
    """What a verb wrote.

    Attributes:
        text: To standard output or a file.
        remarks: Beside it, to standard error.
        is_whole: Whether this is all of it, and not too much to cache.
    """

    text: str
    remarks: tuple[str, ...]
    is_whole: bool


def write_cached(
    sink: EncodedSink,
    output: Output,
    layout: Layout,
    traces: Sequence[TraceRef],
    asked: Sequence[Any],
    write: Callable[[Sink], bool],
    beside: Sequence[Path] = (),
) -> None:
    """Write an output from the cache; where it is not there, make, write and cache it.

    Args:
        sink: Where it goes.
        output: Which output it is.
        layout: Its layout.
        traces: The traces that it is made from, and nothing else but the step records and metrics
            of their ranks, and what is beside.
        asked: What else it depends on, as `json.dumps` takes it.
        write: Makes it, and writes it to a sink; says whether it is the same the next time.
        beside: Other files that it is made from.
    """
    screen = _screen_of(sink, output)
    if screen is None:
        write(sink)
        return

    def depends_on() -> list[Any] | None:
        files = [*map(_identity, traces), *map(_identity_of_file, beside)]
        return None if None in files else [files, *output.modules, to_json(Layout, layout), *asked]

    def fits(cached: CachedText) -> bool:
        text = _COLOUR.sub("", cached.text) if sink.is_terminal else cached.text
        return cached.is_whole and not any(map(_CONTROL.search, (text, *cached.remarks)))

    def anew() -> CachedText:
        recording = RecordingSink(sink, MOST_BYTES)
        lasts = write(recording)
        is_whole = lasts and recording.is_whole
        return CachedText("".join(recording.texts), tuple(recording.remarks), is_whole)

    asked = [*asked, screen]
    known = _file_of(traces[0]) if traces else None
    about = CachedValue(CachedText, known, _ROOMS, depends_on, fits)
    found = about.find()
    if found is None:
        about.make(anew)
        return
    for remark in found.remarks:
        sink.remark(remark)
    sink.write(found.text)


def _screen_of(sink: EncodedSink, output: Output) -> list[Any] | None:
    """What a layout depends on besides the result; None if it cannot be written as plain text."""
    if output.format is not TABLE:
        return []
    from stepscope.report.console import width_for

    console = RecordingSink(sink, MOST_BYTES).console(width=width_for(sink))
    if console.legacy_windows or console.is_terminal != sink.is_terminal:
        return None  # colours by other means, or forced upon a file
    return [
        console.is_terminal,
        console.width,
        console.encoding,
        console.color_system,
        console.no_color,
    ]


def _identity(trace: TraceRef) -> list[Any] | None:
    """Stands for a trace and what else its rank recorded; None if they cannot be identified.

    Raises:
        UnreadableInputError: A file cannot be read.
    """
    path = _file_of(trace)
    key = None if path is None else key_of(path)
    if key is None:
        return None
    found: list[Any] = [trace.name, trace.rank, trace.window, astuple(key)]
    metrics = trace.metrics
    about_metrics = None if metrics is None else metrics.with_name(METRICS_RECORD_FILE)
    for beside in (trace.step_record, metrics, about_metrics):
        if beside is None or not beside.exists():
            found.append(None if beside is None else str(beside))
        elif (about := _identity_of_file(beside)) is not None:
            found.append(about)
        else:
            return None
    return found


def _identity_of_file(path: Path) -> list[Any] | None:
    """Stands for a file that is no trace; None if it cannot be identified.

    Raises:
        UnreadableInputError: It cannot be read.
    """
    key = key_of(path) if is_regular(path) else None
    return None if key is None else [str(path), astuple(key)]


def _file_of(trace: TraceRef) -> Path | None:
    """The file of a trace; None if it is a stream or behind a URL."""
    is_elsewhere = trace.name == STANDARD_INPUT or "://" in trace.name
    return None if is_elsewhere else Path(trace.name)
