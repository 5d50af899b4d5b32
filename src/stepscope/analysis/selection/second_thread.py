"""A second thread for the questions about a trace, if it is large: see `trace/second_thread.py`."""

from __future__ import annotations

from contextlib import AbstractContextManager

from stepscope.trace.model import Trace
from stepscope.trace.second_thread import SecondThread, thread_beside


def second_thread(trace: Trace) -> AbstractContextManager[SecondThread]:
    """A second thread for questions about a trace, until the end of the block."""
    return thread_beside(trace.event_count)
