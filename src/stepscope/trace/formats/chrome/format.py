"""Chrome traces as a format: recognition, and the choice of reader by size."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stepscope.trace.formats.trace_format import Input, TraceFormat
from stepscope.trace.tables import Chunk, SmallTables, Tables

if TYPE_CHECKING:
    from stepscope.trace.formats.chrome.event_list import ReadEvents

COMPILED_ABOVE_BYTES = 2_000_000
"""From so many bytes on, uncompressed, a process reads traces with the compiled scanner.

Below that, importing LLVM and loading machine code takes longer than reading in Python. That is so
of all traces together: a process that reads the small traces of many ranks loads it once."""
_LOG = logging.getLogger(__name__)
_BEFORE_JSON = b"\xef\xbb\xbf \t\r\n"  # byte order mark and space


@dataclass(eq=False)
class BytesRead:
    """Uncompressed bytes of all traces that this process has read into memory."""

    done: int = 0


_READ = BytesRead()


def _read(trace: Input) -> Tables:
    from stepscope.trace.formats.chrome.device_lanes import with_device_lanes
    from stepscope.trace.formats.chrome.reader import read_tables

    tables = read_tables(trace.name, trace.content, trace.problems, _events_reader(trace))
    _READ.done += trace.content.consumed_bytes
    return with_device_lanes(tables)


def _stream(trace: Input, take: Callable[[Chunk], None]) -> SmallTables:
    from stepscope.trace.formats.chrome.device_lanes import names_other_devices, with_unknown_lanes
    from stepscope.trace.formats.chrome.reader import read_in_chunks

    if names_other_devices(trace.content.peek()):
        # What an event stands for depends on names, flows and arguments of the whole file.
        return _read(trace).pass_on(take)
    read = _events_reader(trace)
    small = read_in_chunks(trace.name, trace.content, trace.problems, read, take)
    return replace(small, problems=with_unknown_lanes(small.problems, small.lanes))


def _events_reader(trace: Input) -> ReadEvents:
    """Returns the compiled reader for the events of a large trace or after many small ones.

    For others it is the one in Python.
    """
    if not trace.content.look_ahead(COMPILED_ABOVE_BYTES - _READ.done):
        try:
            from stepscope.trace.formats.chrome.scan import read_events_compiled
        except OSError:  # raised while the first function is translated
            _LOG.warning(
                "%s: the source code of Stepscope is not available (a frozen program?), so the fast"
                " reader cannot be compiled; the slow one takes fifteen times as long",
                trace.name,
            )
        else:
            return read_events_compiled
    from stepscope.trace.formats.chrome.event_list import read_events_tolerantly

    return read_events_tolerantly


FORMAT = TraceFormat(
    name="chrome",
    plural="Chrome traces",
    recognises=lambda beginning: beginning.lstrip(_BEFORE_JSON)[:1] in (b"{", b"["),
    read=_read,
    stream=_stream,
)
"""Traces of Kineto, and any other Chrome traces."""
