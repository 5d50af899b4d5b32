"""A second thread for the questions about a trace, if it is large: see `trace/second_thread.py`."""

from __future__ import annotations

from contextlib import AbstractContextManager

import polars as pl

from stepscope.analysis.selection.remember import remembered
from stepscope.analysis.selection.scope import Scope
from stepscope.trace.model import Trace
from stepscope.trace.second_thread import SecondThread, thread_beside


def second_thread(trace: Trace) -> AbstractContextManager[SecondThread]:
    """A second thread for questions about a trace, until the end of the block."""
    return thread_beside(_number_of_events(trace))


@remembered
def _number_of_events(trace: Trace, _scope: Scope | None = None) -> int:
    return int(trace.events.select(pl.len()).collect().item())
