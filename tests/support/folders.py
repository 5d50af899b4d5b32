"""The current directory, for a while."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def within(folder: Path) -> Iterator[None]:
    """Work in a folder, and return to the one before."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
