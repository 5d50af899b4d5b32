"""memray inside a process of the training: it tracks memory from the import of torch to the end.

`memray run` would watch only the process that it starts, which below torchrun is the launcher. So
each process that imports torch gets its own tracker, which writes a separate file.
"""

from __future__ import annotations

import atexit
import os
from pathlib import Path
from typing import Any

FILE_NAME = "memray-{process_id}.bin"


def begin(request: dict[str, Any]) -> None:
    """Begin to track memory in this process.

    Args:
        request: "folder" for the file, and "native" and "follow_fork" as in `memray run`.

    Raises:
        ModuleNotFoundError: memray is not installed for this interpreter.
        RuntimeError: memray already runs in this process.
        OSError: The file cannot be written.
    """
    import memray

    process_id = os.getpid()
    path = Path(request["folder"]) / FILE_NAME.format(process_id=process_id)
    tracker = memray.Tracker(
        # A process may become another program by exec and keep its ID.
        destination=memray.FileDestination(path, overwrite=True),
        native_traces=request["native"],
        follow_fork=request["follow_fork"],
    )
    tracker.__enter__()

    def end() -> None:
        # A forked child runs this too, but the tracker is not its own.
        if os.getpid() == process_id:
            tracker.__exit__(None, None, None)

    atexit.register(end)
