"""Work that each worker of xdist would do for itself, done by one of them and used by all.

Workers meet the same loop, or the same test module, at about the same time. Each would compile it,
since none has finished yet and put it where the others look.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def waiting_for_the_first(file: Path) -> Iterator[None]:
    """Wait while another process is in here with the same file, unless none is."""
    import fcntl  # which Windows has not

    with file.open("rb") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(held, fcntl.LOCK_SH)
            fcntl.flock(held, fcntl.LOCK_UN)
        yield


def compile_in_turn() -> None:
    """From now on, numba compiles a function in one process, and the others load its code.

    The lock belongs to the file of the function asked for. What is compiled on its behalf takes
    none, so that no two processes wait for each other.
    """
    from numba.core.dispatcher import Dispatcher

    compile_it = Dispatcher.compile
    of_thread = threading.local()

    def compile_first(self: Any, signature: Any) -> Any:
        if getattr(of_thread, "compiles", False):
            return compile_it(self, signature)
        of_thread.compiles = True
        try:
            with waiting_for_the_first(Path(self.py_func.__code__.co_filename)):
                return compile_it(self, signature)
        finally:
            of_thread.compiles = False

    Dispatcher.compile = compile_first
