"""Every format that traces come in: the one place that knows them by name.

A new format is a module (or a package) with a `TraceFormat`, and a line here. A kind of file that
should be named but cannot be read as a trace is an entry in `not_traces.py`.
"""

from __future__ import annotations

from stepscope.errors import UnreadableInputError
from stepscope.trace.formats import pyspy
from stepscope.trace.formats.chrome import format as chrome
from stepscope.trace.formats.not_traces import NOT_TRACES
from stepscope.trace.formats.nsys import format as nsys
from stepscope.trace.formats.trace_format import TraceFormat

FORMATS: tuple[TraceFormat, ...] = (nsys.EXPORT, nsys.REPORT, pyspy.FORMAT, chrome.FORMAT)
"""The first that recognises a trace reads it: narrow ones come before wide ones."""


def format_of(name: str, beginning: bytes) -> TraceFormat:
    """The format of a trace, by its content.

    What no format recognises is read as a Chrome trace: that reader says what is wrong with it.

    Args:
        name: What messages call the trace; it decides nothing.
        beginning: The first bytes of its uncompressed content.

    Raises:
        UnreadableInputError: It is known to be something else; says what, and what to do.
    """
    for known in NOT_TRACES:
        if known.recognises(beginning):
            raise UnreadableInputError(f"{name}: {known.description}; {known.remedy}")
    return next((known for known in FORMATS if known.recognises(beginning)), chrome.FORMAT)
