"""A stopwatch in a script that is recorded: what each step spends, as the script itself sees it."""

from __future__ import annotations

import atexit
import collections
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FILE = "stopwatch.json"
_steps: list[dict[str, int]] = []
_sums: collections.Counter[str] = collections.Counter()
_ends = [time.perf_counter_ns()]
_nested = [0]
"""Time in the parts within each part that is open."""


@contextmanager
def timed(name: str = "") -> Iterator[None]:
    """Add to a part of the step and take it out of the one around it; without a name, only that."""
    start = time.perf_counter_ns()
    _nested.append(0)
    yield
    took_ns = time.perf_counter_ns() - start
    if name:
        _sums[name] += took_ns - _nested[-1]
    _nested.pop()
    _nested[-1] += took_ns


def step() -> None:
    """End a step."""
    now = time.perf_counter_ns()
    _steps.append({"step": now - _ends[-1], **_sums})
    _ends.append(now)
    _sums.clear()


def restart() -> None:
    """Begin the step now: what came since the last one belongs to none."""
    _ends.append(time.perf_counter_ns())
    _sums.clear()


@atexit.register
def _write() -> None:
    if _steps:
        Path(FILE).write_text(json.dumps(_steps))
