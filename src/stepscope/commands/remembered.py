"""Outputs of verbs, kept as memos: the same command prints its text again, and opens no trace.

Nothing is kept of what is read from standard input or a URL.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from stepscope.commands.sinks import CommandSink
from stepscope.errors import UnreadableInputError
from stepscope.report.outputs import TABLE, Layout, Output, Sink
from stepscope.run.layout import METRICS_RECORD_FILE
from stepscope.trace.paths import STANDARD_INPUT, TraceRef
from stepscope.trace.store.memo import MOST_BYTES, Memo
from stepscope.trace.store.origin import identity_of

if TYPE_CHECKING:
    from rich.console import Console

    from stepscope.opening.reader import Run

_SCREEN_VARIABLES = (
    "COLORTERM", "COLUMNS", "FORCE_COLOR", "LINES", "NO_COLOR", "TERM", "TTY_COMPATIBLE",
    "TTY_INTERACTIVE",
)  # fmt: skip
"""Environment variables that decide what a text for a terminal looks like."""


@dataclass(frozen=True)
class _Text:
    """What a verb wrote to standard output or a file, and beside it to standard error."""

    text: str
    remarks: tuple[str, ...]


class _RecordingSink:
    """A sink that passes everything on, and remembers it up to a number of characters."""

    def __init__(self, sink: CommandSink, most: int) -> None:
        self._sink = sink
        self._most = most
        self._size = 0
        self.texts: list[str] = []
        self.remarks: list[str] = []
        self.is_whole = True

    @property
    def is_terminal(self) -> bool:
        return self._sink.is_terminal

    @property
    def encoding(self) -> str:
        return self._sink.encoding

    def isatty(self) -> bool:
        """The same as `is_terminal`, for a console: to it, this is a text stream."""
        return self.is_terminal

    def flush(self) -> None:
        """Do nothing: what is written is passed on at once."""

    def console(self, *, keeps_padding: bool = False, width: int | None = None) -> Console:
        from stepscope.report.console import console_on

        return console_on(cast(TextIO, self), keeps_padding=keeps_padding, width=width)

    def write(self, content: str | bytes) -> None:
        """Pass text or bytes on; of these, only text is remembered."""
        self._sink.write(content)
        self._size += len(content)
        self.is_whole &= isinstance(content, str) and self._size <= self._most
        if isinstance(content, str) and self.is_whole:
            self.texts.append(content)
        else:
            self.texts.clear()

    def remark(self, text: str) -> None:
        self._sink.remark(text)
        self.remarks.append(text)


def write_remembered(
    sink: CommandSink,
    output: Output,
    layout: Layout,
    inputs: Callable[[], Any],
    write: Callable[[Sink], bool | None],
) -> None:
    """Write an output as it was written before; otherwise make, write and keep it.

    Args:
        inputs: All that the output depends on, as `Memo` takes it.
        write: Makes it, and writes it to a sink; False: it may not be the same the next time.
    """
    if sink.is_terminal and os.name == "nt":  # colours may be shown by other means than text
        write(sink)
        return
    recording = _RecordingSink(sink, MOST_BYTES)
    is_the_same: list[bool] = []

    def make() -> _Text:
        is_the_same.append(write(recording) is not False)
        return _Text("".join(recording.texts), tuple(recording.remarks))

    memo = Memo(_Text, lambda: [_screen(sink, output), [*output.modules], layout, inputs()])
    found = memo.find()
    if found is None:
        memo.make(make, lambda _: all(is_the_same) and recording.is_whole)
        return
    for remark in found.remarks:
        sink.remark(remark)
    sink.write(found.text)


def _screen(sink: CommandSink, output: Output) -> list[Any] | None:
    """What a text depends on besides the result; None for the formats that look alike anywhere."""
    if output.format is not TABLE:
        return None
    size = shutil.get_terminal_size() if sink.is_terminal else None
    return [sink.is_terminal, sink.encoding, size, [*map(os.environ.get, _SCREEN_VARIABLES)]]


def identity_of_run(run: Run) -> list[Any]:
    """Stands for a run, with all that its report reads, and how it was found.

    Raises:
        UnreadableInputError: A trace cannot be read, or something cannot be identified.
    """
    if run.source:
        raise UnreadableInputError(f"{run.source}: not a local run")
    traces = [window.trace_path for window in run.windows if window.trace_path is not None]
    is_recorded = run.job is not None or any(rank.manifest is not None for rank in run.ranks)
    return [
        run.path,
        [rank.rank for rank in run.ranks],
        run.unrelated,
        run.others,
        run.empty,
        [identity_of(path) for path in traces],
        [*_files_below(run.path)] if is_recorded else [],
    ]


def _files_below(directory: Path) -> Iterable[tuple[str, int, int, int]]:
    """Path, size and times of each file of a run, apart from stores.

    The second time also changes when a file becomes readable.
    """
    for folder, names, files in os.walk(directory):
        names[:] = sorted(name for name in names if ".stepscope" not in name)
        for name in sorted(files):
            path = f"{folder}{os.sep}{name}"
            status = os.lstat(path)
            yield path, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def identity_of_traces(traces: Sequence[TraceRef]) -> list[Any]:
    """Stands for traces, and what else their ranks recorded.

    Raises:
        UnreadableInputError: A file cannot be read, or something cannot be identified.
    """
    if not traces:
        raise UnreadableInputError("no trace: what only a step record says is not kept")
    return [_identity_of_trace(trace) for trace in traces]


def _identity_of_trace(trace: TraceRef) -> list[Any]:
    if trace.name == STANDARD_INPUT or "://" in trace.name:
        raise UnreadableInputError(f"{trace.name}: not a local file")
    metrics = trace.metrics
    record = None if metrics is None else metrics.with_name(METRICS_RECORD_FILE)
    beside = [path for path in (trace.step_record, metrics, record) if path is not None]
    return [
        trace,
        identity_of(Path(trace.name)),
        [identity_of(path) for path in beside if path.exists()],
    ]
