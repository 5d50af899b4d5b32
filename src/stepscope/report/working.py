"""Shows on a terminal that a long computation goes on."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

_PATIENCE_SECONDS = 1.0
_INTERVAL_SECONDS = 0.5


@contextmanager
def working(what: str, stream: TextIO | None = None) -> Iterator[None]:
    """Shows what is being done and for how long, in one line that is gone afterwards.

    Nothing is shown for what ends within a second, or if the stream is no terminal.

    Args:
        what: What is being done, as "Answering settings".
        stream: Where to show it; None: on standard error.
    """
    shown_on = sys.stderr if stream is None else stream
    if shown_on is None or not shown_on.isatty():
        yield
        return
    done = threading.Event()
    shower = threading.Thread(target=_show, args=(what, shown_on, done), daemon=True)
    shower.start()
    try:
        yield
    finally:
        done.set()
        shower.join()


def _show(what: str, stream: TextIO, done: threading.Event) -> None:
    began = time.monotonic()
    wait = _PATIENCE_SECONDS
    is_visible = False
    while not done.wait(wait):
        stream.write(f"\r\x1b[K{what} · {time.monotonic() - began:.0f} s")
        stream.flush()
        is_visible, wait = True, _INTERVAL_SECONDS
    if is_visible:
        stream.write("\r\x1b[K")
        stream.flush()
