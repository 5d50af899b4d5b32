"""Chrome traces as a format: recognition, and what other recorders than Kineto mean."""

from __future__ import annotations

from collections.abc import Callable

from stepscope.trace.formats.chrome.device_lanes import (
    names_other_devices,
    with_device_lanes,
    with_unknown_lanes,
)
from stepscope.trace.formats.chrome.reader import read_in_chunks, read_tables
from stepscope.trace.formats.trace_format import Input, TraceFormat
from stepscope.trace.tables import Frames, Tables

_BEFORE_JSON = b"\xef\xbb\xbf \t\r\n"  # byte order mark and space


def _read(trace: Input) -> Tables:
    return with_device_lanes(read_tables(trace.name, trace.content, trace.problems))


def _stream(trace: Input, take: Callable[[Frames], None]) -> Frames:
    if names_other_devices(trace.content.peek()):
        # What an event stands for depends on names, flows and arguments of the whole file.
        return _read(trace).pass_on(take)
    small = read_in_chunks(trace.name, trace.content, trace.problems, take)
    return {**small, "problems": with_unknown_lanes(small["problems"], small["lanes"])}


FORMAT = TraceFormat(
    name="chrome",
    recognises=lambda beginning: beginning.lstrip(_BEFORE_JSON)[:1] in (b"{", b"["),
    read=_read,
    stream=_stream,
)
"""Traces of Kineto, and any other Chrome traces."""
