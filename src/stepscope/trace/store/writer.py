"""Writes a store, part by part, and removes it again unless it is completed."""

from __future__ import annotations

import atexit
import json
import os
import secrets
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

import polars as pl

from stepscope.errors import UnreadableInputError
from stepscope.trace.schema import TABLES
from stepscope.trace.store.contents import contents_of
from stepscope.trace.store.directory import (
    MANIFEST,
    Claim,
    put_in_place,
    remove_abandoned,
    temporary_name,
)
from stepscope.trace.store.files import is_store_of
from stepscope.trace.store.origin import Origin, cache_directory
from stepscope.trace.store.part import write_table
from stepscope.trace.tables import GROWING, SMALL, Frames

_ROWS_PER_PART = {
    "events": 250_000,
    "args": 100_000,
    "instants": 200_000,
    "counters": 200_000,
    "flows": 250_000,
}


class StoreWriter:
    """A context manager that writes a store, and removes it unless it is completed.

    A store without a key is useless to other processes: it keeps its temporary name and is removed
    when the process exits.
    """

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.path, self._claim = claimed_path(origin)
        self._temporary = self._claim.directory
        self._stays = False
        self._held: dict[str, list[pl.DataFrame]] = {name: [] for name in GROWING}
        self._rows = dict.fromkeys(GROWING, 0)
        self._parts = dict.fromkeys((*GROWING, *SMALL), 0)
        self._total = dict.fromkeys((*GROWING, *SMALL), 0)
        self._contents: dict[str, dict[str, Any]] = {}  # of the files written so far
        # One thread writes while others read. It lags behind by two parts at most, to bound memory.
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="stepscope-store")
        self._pending: list[Future[None]] = []

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown(wait=True, cancel_futures=kind is not None)
        if not self._stays:
            self._claim.remove()

    def add(self, chunk: Frames) -> None:
        """Appends rows."""
        for name, rows in chunk.items():
            if not len(rows):
                continue
            self._held[name].append(rows)
            self._rows[name] += len(rows)
            if self._rows[name] >= _ROWS_PER_PART[name]:
                self._flush(name)

    def _flush(self, name: str) -> None:
        rows, self._held[name], self._rows[name] = self._held[name], [], 0
        self._write(name, rows)

    def _write(self, name: str, rows: Sequence[pl.DataFrame]) -> None:
        while len(self._pending) >= 2:
            self._written(self._pending.pop(0))
        target = self._temporary / name / f"{self._parts[name]:05}.parquet"
        self._parts[name] += 1
        self._total[name] += sum(map(len, rows))
        self._pending.append(self._pool.submit(self._write_part, rows, target))

    def _write_part(self, rows: Sequence[pl.DataFrame], target: Path) -> None:
        target.parent.mkdir(exist_ok=True)
        write_table(rows[0] if len(rows) == 1 else pl.concat(rows), target)
        name = target.relative_to(self._temporary).as_posix()
        self._contents |= contents_of(self._temporary, [name])

    def _written(self, pending: Future[None]) -> None:
        try:
            pending.result()
        except (OSError, pl.exceptions.ComputeError) as error:
            raise self._refusal(error) from error

    def _refusal(self, error: Exception) -> UnreadableInputError:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        return UnreadableInputError(
            f"{self.origin.name}: cannot write the store to {self._temporary.parent}: "
            f"{reason}; free some space, set STEPSCOPE_CACHE to another directory, "
            "or use store=False"
        )

    def finish(self, small: Frames) -> Path:
        """Writes the remaining rows and moves the store to its final path."""
        for name in GROWING:
            if self._held[name]:
                self._flush(name)
            elif not self._parts[name]:
                self._write(name, [pl.DataFrame(schema=TABLES[name])])
        for name in SMALL:
            self._write(name, [small[name]])
        for pending in self._pending:
            self._written(pending)
        key = self.origin.key
        manifest = {
            "format": "stepscope store",
            "source": self.origin.name,
            "key": None if key is None else asdict(key),
            "identity": secrets.token_hex(8),
            "rows": self._total,
            "files": self._contents,
        }
        text = json.dumps(manifest, indent=2) + "\n"
        try:
            (self._temporary / MANIFEST).write_text(text, "utf-8")
        except OSError as error:
            raise self._refusal(error) from error
        if key is None:
            self._stays = True
            atexit.register(remove_own, self._claim, os.getpid())
            return self._temporary
        self._claim.release()
        if not put_in_place(
            self._temporary, self.path, lambda: is_store_of(self.path, self.origin)
        ):
            raise UnreadableInputError(f"{self.path}: cannot be replaced; remove it and try again")
        return self.path


def remove_own(claim: Claim, process: int) -> None:
    """Removes a private store when its process exits, but not when a fork of it does."""
    if os.getpid() == process:
        claim.remove()


def claimed_path(origin: Origin) -> tuple[Path, Claim]:
    """Returns the first writable path for a store, and a claimed temporary directory next to it."""
    refusals = []
    for number, path in enumerate(origin.paths):
        temporary = temporary_name(path)
        try:
            if number or path.parent == cache_directory():
                path.parent.mkdir(parents=True, exist_ok=True)
            claim = Claim(temporary)
        except OSError as error:
            refusals.append(f"{path.parent}: {error.strerror}")
            continue
        remove_abandoned(path, is_private=origin.key is None)
        return path, claim
    raise UnreadableInputError(
        f"{origin.name}: cannot write a store ({'; '.join(refusals)}); "
        "set STEPSCOPE_CACHE to a writable directory, or use store=False"
    )
