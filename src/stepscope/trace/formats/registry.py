"""The registry of trace formats, the only place that knows them by name.

To add a format, write a module or package with a `TraceFormat` and add it to `FORMATS`. To report a
kind of file that is not a trace by name, add an entry to `not_traces.py`.
"""

from __future__ import annotations

from stepscope.errors import UnreadableInputError
from stepscope.trace.formats import pyspy
from stepscope.trace.formats.chrome import reader as chrome
from stepscope.trace.formats.not_traces import NOT_TRACES
from stepscope.trace.formats.nsys import format as nsys
from stepscope.trace.formats.perfetto import format as perfetto
from stepscope.trace.formats.trace_format import TraceFormat

FORMATS: tuple[TraceFormat, ...] = (
    nsys.FORMAT,
    pyspy.FORMAT,
    pyspy.SPEEDSCOPE,
    pyspy.RAW,
    perfetto.FORMAT,
    chrome.FORMAT,
)
"""Tried in order; the first match reads the trace, so specific formats come first."""


def format_of(name: str, beginning: bytes) -> TraceFormat:
    """Returns the format of a trace, determined by its content.

    Content that no format recognises is treated as a Chrome trace, because that reader explains
    best what is wrong with it.
    """
    if pyspy.RAW.recognises(beginning):
        return pyspy.RAW  # the only collapsed stacks that are read
    for known in NOT_TRACES:
        if known.recognises(beginning):
            raise UnreadableInputError(f"{name}: {known.description}; {known.remedy}")
    return next((known for known in FORMATS if known.recognises(beginning)), chrome.FORMAT)
