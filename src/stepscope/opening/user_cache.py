"""The user's cache directory: always a place that can be used, whoever the user is."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def user_cache() -> Path:
    """The user's cache directory for Stepscope; it need not exist.

    A user without a home, as containers with arbitrary user numbers have, gets a directory of their
    own below that for temporary files.
    """
    from platformdirs import user_cache_path

    try:
        return user_cache_path("stepscope")
    except RuntimeError:  # there is no home directory
        number = os.getuid() if hasattr(os, "getuid") else 0
        return _own(Path(tempfile.gettempdir()) / f"stepscope-{number}")


def _own(path: Path) -> Path:
    """The directory, if nobody else owns it or can write to it; otherwise a new one."""
    with contextlib.suppress(OSError):
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
        if path.is_dir() and not path.is_symlink() and status.st_uid == os.getuid():
            path.chmod(0o700)
            return path
    return Path(tempfile.mkdtemp(prefix="stepscope-"))
