"""The store: a directory of Parquet files beside a trace, written once and opened at once.

`trace.json.gz` gets `trace.json.gz.stepscope/`: a directory of Parquet parts for each table, and
`manifest.json`. Where the trace's own directory cannot be written to, the store goes to the user's
cache directory. A store is valid for one content (size, time and a probe) and one version of the
schema. It is written under a temporary name and renamed when it is complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import polars as pl

from stepscope.errors import UnreadableInputError
from stepscope.trace.assemble import Assembler, Chunk, classified
from stepscope.trace.model import Trace
from stepscope.trace.schema import (
    ARGS,
    COUNTERS,
    EVENTS,
    FLOWS,
    INSTANTS,
    METADATA,
    SCHEMA_VERSION,
)

SUFFIX = ".stepscope"
MANIFEST = "manifest.json"
_TEMPORARY = ".tmp-"
_PROBE_BYTES = 64 * 1024
_ABANDONED_SECONDS = 24 * 3600

# Tables that grow with the file, their columns, and how many rows one part holds.
_GROWING: dict[str, tuple[dict[str, Any], int]] = {
    "events": (EVENTS, 500_000),
    "args": (ARGS, 100_000),
    "instants": (INSTANTS, 200_000),
    "counters": (COUNTERS, 200_000),
    "flows": (FLOWS, 500_000),
}
_SMALL = ("names", "lanes", "metadata", "problems")


@dataclass(frozen=True)
class Key:
    """What a store was made of; it is valid only for a file of the same key."""

    size_bytes: int
    modified_ns: int
    probe: str
    schema_version: int


def key_of(path: Path) -> Key:
    """The key of a trace file: its size, its time, and a digest of its beginning, middle and end.

    Raises:
        UnreadableInputError: It cannot be read.
    """
    try:
        with path.open("rb") as opened:
            status = os.fstat(opened.fileno())
            digest = hashlib.blake2b(digest_size=16)
            last = max(0, status.st_size - _PROBE_BYTES)
            for offset in sorted({0, last // 2, last}):
                opened.seek(offset)
                digest.update(opened.read(_PROBE_BYTES))
    except OSError as error:
        raise UnreadableInputError(f"{path}: cannot be read: {error.strerror}") from error
    return Key(status.st_size, status.st_mtime_ns, digest.hexdigest(), SCHEMA_VERSION)


def cache_directory() -> Path:
    """Where stores go that cannot stand beside their trace (`STEPSCOPE_CACHE` overrides it)."""
    override = os.environ.get("STEPSCOPE_CACHE")
    if override:
        return Path(override)
    import platformdirs

    return Path(platformdirs.user_cache_dir("stepscope")) / "traces"


def store_places(path: Path) -> tuple[Path, Path]:
    """Where the store of a trace may be: beside it, and in the cache directory."""
    absolute = path.absolute()
    digest = hashlib.blake2b(str(absolute).encode("utf-8", "surrogateescape"), digest_size=8)
    name = f"{digest.hexdigest()}-{path.name}{SUFFIX}"
    return absolute.with_name(path.name + SUFFIX), cache_directory() / name


def find_store(path: Path) -> Path | None:
    """The valid store of a trace; None where there is none."""
    places = [place for place in store_places(path) if (place / MANIFEST).is_file()]
    if not places:
        return None
    key = key_of(path)
    for place in places:
        if read_manifest(place).get("key") == asdict(key):
            return place
    return None


def read_manifest(store: Path) -> dict[str, Any]:
    """What a store says about itself; empty where it is damaged."""
    try:
        value = json.loads((store / MANIFEST).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def open_store(store: Path, path: Path) -> Trace:
    """Opens a store: nothing but its small tables is read before it is asked for."""
    with contextlib.suppress(OSError):  # marks it as used; a store may be read-only
        os.utime(store)

    def table(name: str) -> pl.LazyFrame:
        parts = sorted((store / name).glob("*.parquet"))
        return pl.scan_parquet(parts, glob=False)

    return Trace(
        path=str(path),
        **{name: table(name) for name in ("names", "metadata", *_GROWING)},
        lanes=table("lanes").collect(),
        problems=table("problems").collect(),
        store=store,
    )


class StoreWriter:
    """Writes a store part by part; as a context, it leaves either a whole store or nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.key = key_of(path)
        self.place, self._temporary = _writable_place(path)
        self._held: dict[str, list[pl.DataFrame]] = {name: [] for name in _GROWING}
        self._rows = dict.fromkeys(_GROWING, 0)
        self._parts = dict.fromkeys((*_GROWING, *_SMALL), 0)
        self._total = dict.fromkeys((*_GROWING, *_SMALL), 0)
        # One thread writes while others read; it may lag behind by two parts, which bounds memory.
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
        shutil.rmtree(self._temporary, ignore_errors=True)

    def add(self, chunk: Chunk) -> None:
        """Appends rows."""
        for name, (_, most) in _GROWING.items():
            frame: pl.DataFrame = getattr(chunk, name)
            if not len(frame):
                continue
            self._held[name].append(frame)
            self._rows[name] += len(frame)
            if self._rows[name] >= most:
                self._flush(name)

    def _flush(self, name: str) -> None:
        frames, self._held[name], self._rows[name] = self._held[name], [], 0
        self._write(name, frames)

    def _write(self, name: str, frames: list[pl.DataFrame]) -> None:
        while len(self._pending) >= 2:
            self._pending.pop(0).result()
        directory = self._temporary / name
        target = directory / f"{self._parts[name]:05}.parquet"
        self._parts[name] += 1
        self._total[name] += sum(len(frame) for frame in frames)
        self._pending.append(self._pool.submit(_write_part, frames, directory, target))

    def finish(self, assembler: Assembler) -> Path:
        """Writes what is left, and puts the store in its place.

        Returns:
            Its directory.
        """
        for name, (schema, _) in _GROWING.items():
            if self._held[name]:
                self._flush(name)
            elif not self._parts[name]:
                self._write(name, [pl.DataFrame(schema=schema)])
        self._write("names", [classified(assembler.names_table())])
        self._write("lanes", [assembler.lanes_table()])
        self._write("metadata", [pl.DataFrame(assembler.metadata, schema=METADATA, orient="row")])
        self._write("problems", [assembler.problems.frame()])
        for pending in self._pending:
            pending.result()
        manifest = {
            "format": "stepscope store",
            "source": str(self.path.absolute()),
            "key": asdict(self.key),
            "rows": self._total,
        }
        (self._temporary / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", "utf-8")
        _put_in_place(self._temporary, self.place, self.key)
        return self.place


def _write_part(frames: list[pl.DataFrame], directory: Path, target: Path) -> None:
    directory.mkdir(exist_ok=True)
    frame = frames[0] if len(frames) == 1 else pl.concat(frames)
    frame.write_parquet(target, compression="zstd", compression_level=1)


def _writable_place(path: Path) -> tuple[Path, Path]:
    """Where the store shall be, and the temporary directory beside that, created.

    Raises:
        UnreadableInputError: No place can be written to.
    """
    refusals = []
    for place in store_places(path):
        temporary = place.with_name(f"{place.name}{_TEMPORARY}{os.getpid()}-{secrets.token_hex(4)}")
        try:
            if place.parent != path.absolute().parent:
                place.parent.mkdir(parents=True, exist_ok=True)
            temporary.mkdir()
        except OSError as error:
            refusals.append(f"{place.parent}: {error.strerror}")
            continue
        _remove_abandoned(place)
        return place, temporary
    raise UnreadableInputError(
        f"{path}: no place for its store ({'; '.join(refusals)}); "
        "set STEPSCOPE_CACHE to a directory that can be written to, or load with store=False"
    )


def _remove_abandoned(place: Path) -> None:
    """Removes what a killed process left of this store."""
    for left in place.parent.glob(f"{_escaped(place.name)}{_TEMPORARY}*"):
        try:
            age = time.time() - left.stat().st_mtime
        except OSError:
            continue
        if age > _ABANDONED_SECONDS:
            shutil.rmtree(left, ignore_errors=True)


def _escaped(name: str) -> str:
    return "".join(f"[{character}]" if character in "*?[" else character for character in name)


def _put_in_place(temporary: Path, place: Path, key: Key) -> None:
    """Renames a complete store to its name; of several at once, whichever comes last remains."""
    attempts = 10
    while attempts and not _replaced(temporary, place, key):
        attempts -= 1
    if not attempts:
        raise UnreadableInputError(f"{place}: cannot be replaced; remove it and try again")


def _replaced(temporary: Path, place: Path, key: Key) -> bool:
    """Tries once to put a store in its place; whether a valid one is there now."""
    try:
        temporary.rename(place)
    except OSError:
        if read_manifest(place).get("key") == asdict(key):
            return True  # another process was faster with the same content
        stale = place.with_name(f"{place.name}{_TEMPORARY}stale-{secrets.token_hex(4)}")
        with contextlib.suppress(OSError):  # another process may just be doing the same
            place.rename(stale)
        shutil.rmtree(stale, ignore_errors=True)
        return False
    return True


@dataclass(frozen=True)
class StoreInfo:
    """One store on disk."""

    place: Path
    source: str
    size_bytes: int
    used: float
    """Unix time when it was last opened."""
    is_complete: bool


def stores_in(directory: Path) -> Iterator[StoreInfo]:
    """The stores in a directory, and what killed processes left of them."""
    if not directory.is_dir():
        return
    for place in sorted(directory.iterdir()):
        if SUFFIX not in place.name or not place.is_dir() or place.is_symlink():
            continue
        manifest = read_manifest(place)
        is_store = manifest.get("format") == "stepscope store" and place.name.endswith(SUFFIX)
        if not is_store and _TEMPORARY not in place.name:
            continue
        files = [entry for entry in place.rglob("*") if entry.is_file()]
        size = sum(entry.stat().st_size for entry in files)
        source = str(manifest.get("source", ""))
        yield StoreInfo(place, source, size, place.stat().st_mtime, is_store)
