"""Work that each worker of xdist would do for itself, done by one of them and used by all.

Workers meet the same test module at about the same time. Each would compile it, since none has
finished yet and put it where the others look.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


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
