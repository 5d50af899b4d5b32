"""Which files are memory timelines, without reading them, and without polars and numpy."""

from __future__ import annotations

import re
from pathlib import Path

from stepscope.trace.formats.not_traces import is_memory_timeline
from stepscope.trace.source.opening import beginning_of

BEGINNING_BYTES = 16 * 1024
"""How much of a file shows what it is."""
PAGE = re.compile(rb"<title>(?:GPU Memory Timeline HTML|Memory over time)</title>")


def is_timeline_file(path: str) -> bool:
    """Whether a local file is a memory timeline, or the page of one, by its content."""
    if not Path(path).is_file():
        return False
    beginning = beginning_of(Path(path), BEGINNING_BYTES)
    return is_memory_timeline(beginning) or PAGE.search(beginning) is not None
