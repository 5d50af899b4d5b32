"""Shows on a terminal how many ranks are done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from stepscope.fleet.engines.outcome import ProgressReport
from stepscope.terminal.status_line import StatusLine


@contextmanager
def ranks_done() -> Iterator[ProgressReport]:
    """Yields what an engine reports to. Nothing is shown where nobody watches."""
    status = StatusLine()
    try:
        yield lambda done, of: status.update(f"Reading ranks · {done:,} of {of:,}")
    finally:
        status.close()
