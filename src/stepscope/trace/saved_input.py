"""Saves standard input to a file, for verbs that read a trace more than once."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
from pathlib import Path
from typing import IO

from stepscope.errors import UnreadableInputError, UsageError
from stepscope.terminal.working import working
from stepscope.trace.formats.registry import format_of
from stepscope.trace.load import load
from stepscope.trace.problems import Problems
from stepscope.trace.source.limits import REMEDY, limits_of, shown
from stepscope.trace.source.opening import open_source
from stepscope.trace.store.origin import origin_of_stream, store_paths
from stepscope.trace.store.writer import claimed_path, remove_own

NAME = "standard input"
"""How messages and reports call it."""
_FILE = "standard-input"
_PIECE_BYTES = 1 << 20


def opened_standard_input() -> IO[bytes]:
    """Standard input, as a stream of bytes."""
    # Unbuffered: a reader waiting for a silent pipe must not hold a lock when the process ends.
    opened = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115 - it stays open
    if opened.isatty():
        raise UsageError("- means standard input, and that is a terminal: pipe a trace into it")
    return opened


@functools.cache
def saved_standard_input() -> Path:
    """A file with what standard input holds; removed when the process ends.

    It is in the cache directory, beside the private stores of streams. What cannot be a trace by
    its first megabyte is not saved.
    """
    given = opened_standard_input()
    _, claim = claimed_path(origin_of_stream(NAME))
    atexit.register(remove_own, claim, os.getpid())
    target = claim.directory / _FILE
    atexit.register(_remove_stores, target, os.getpid())
    limit = limits_of(None, is_packed=False).total_bytes
    saved, is_known = 0, False
    with working("Reading standard input"), target.open("wb") as file:
        while piece := _next_piece(given):
            saved += len(piece)
            if limit is not None and saved > limit:
                raise UnreadableInputError(f"{NAME}: holds more than {shown(limit)}; {REMEDY}")
            try:
                file.write(piece)
                file.flush()
            except OSError as error:
                raise UnreadableInputError(
                    f"{NAME}: cannot be saved to {claim.directory.parent}: {error.strerror};"
                    " STEPSCOPE_CACHE names another directory"
                ) from error
            if not is_known and saved >= _PIECE_BYTES:
                _check(target)
                is_known = True
    if not saved:
        raise UnreadableInputError(f"{NAME}: empty; the recorder wrote nothing")
    _check(target)
    return target


def _next_piece(given: IO[bytes]) -> bytes:
    try:
        return given.read(_PIECE_BYTES)
    except OSError as error:
        raise UnreadableInputError(f"{NAME}: cannot be read: {error.strerror}") from error


def _check(file: Path) -> None:
    """Check that what was saved so far can be a trace."""
    with open_source(file) as source:
        beginning = source.blocks(Problems()).peek()
    if not format_of(NAME, beginning).recognises(beginning):
        try:
            load(file, store=False)  # explains best what is wrong with it
        except UnreadableInputError as error:
            raise UnreadableInputError(str(error).replace(str(file), NAME)) from error


def _remove_stores(file: Path, process: int) -> None:
    """Remove the stores of the saved file that are kept elsewhere."""
    if os.getpid() == process:
        for store in store_paths(file):
            shutil.rmtree(store, ignore_errors=True)
