"""What a verb reads from its standard input, without a process of its own."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from stepscope.trace.saved_input import saved_standard_input


@contextlib.contextmanager
def standard_input(given: bytes) -> Iterator[None]:
    """Make file 0 the end of a pipe that somebody writes this to, as in a shell."""
    before = os.dup(0)
    reader, writer = os.pipe()

    def write() -> None:
        with contextlib.suppress(BrokenPipeError), os.fdopen(writer, "wb") as pipe:
            pipe.write(given)

    thread = threading.Thread(target=write)
    saved_standard_input.cache_clear()  # a process has one input, and keeps what it saved of it
    try:
        os.dup2(reader, 0)
        os.close(reader)
        thread.start()
        yield
    finally:
        saved_standard_input.cache_clear()
        os.dup2(before, 0)  # whoever still writes has no reader
        os.close(before)
        thread.join()
