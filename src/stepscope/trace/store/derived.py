"""What is derived from a store's tables, kept in the store once it has been computed.

`TRACE.stepscope/derived/` has `columns.parquet` (row for row beside `events`),
`host_steps.parquet`, `device_steps.parquet`, `doubts.parquet` and `manifest.json`. It counts only
for the very store that it was computed from and for the code that computed it, and only as long as
its files are as they were written; otherwise everything is computed again, and kept again where
that is possible.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope._package import PACKAGE
from stepscope.run.files import digest_of
from stepscope.trace.store.place import (
    MANIFEST,
    Claim,
    put_in_place,
    read_manifest,
    remove_abandoned,
    temporary_name,
)

if TYPE_CHECKING:
    from stepscope.trace.derive.columns import Derived

DERIVED = "derived"
"""The directory in a store."""
_FILES = ("columns", "host_steps", "device_steps", "doubts")


@functools.cache
def code_digest() -> str | None:
    """A digest of the code that tables and what is derived from them come from.

    So that nothing computed by another version of a definition is ever taken for this one's, and
    nobody has to remember to count a number up.

    Returns:
        None where the code cannot be read: then nothing is kept.
    """
    digest = hashlib.blake2b(digest_size=16)
    try:
        modules = sorted((PACKAGE / "trace").rglob("*.py"))
        for module in modules:
            digest.update(
                module.relative_to(PACKAGE).as_posix().encode()
                + b"\0"
                + module.read_bytes()
                + b"\0"
            )
    except OSError:
        return None
    return digest.hexdigest() if modules else None


@dataclass(frozen=True)
class Derivation:
    """What is derived from a trace, wherever it is.

    Attributes:
        columns: Row for row beside `events`: `schema.DERIVED`.
        host_steps: `schema.HOST_STEPS`.
        device_steps: `schema.DEVICE_STEPS`.
        problems: What looks wrong, with the columns of `schema.PROBLEMS`.
        files: Parquet files of `derived`, `host_steps` and `device_steps`, where they are kept.
    """

    columns: pl.LazyFrame
    host_steps: pl.DataFrame
    device_steps: pl.DataFrame
    problems: pl.DataFrame
    files: Mapping[str, Path] = field(default_factory=dict)

    @classmethod
    def of(cls, derived: Derived) -> Derivation:
        """What was just computed."""
        return cls(
            derived.columns.lazy(), derived.host_steps, derived.device_steps, derived.problems
        )


@dataclass(frozen=True)
class DerivedFiles:
    """What was derived from one store, on disk.

    Attributes:
        store: The store's directory.
        identity: The store's own mark: a store that was made anew has another.
    """

    store: Path
    identity: str

    def read(self) -> Derivation | None:
        """What is kept, its columns lazily; None where nothing is, or nothing that counts."""
        place = self.store / DERIVED
        if not self._is_valid(place):
            return None
        try:
            return Derivation(
                columns=pl.scan_parquet(place / "columns.parquet", glob=False),
                host_steps=pl.read_parquet(place / "host_steps.parquet", glob=False),
                device_steps=pl.read_parquet(place / "device_steps.parquet", glob=False),
                problems=pl.read_parquet(place / "doubts.parquet", glob=False),
                files=_tables_in(place),
            )
        except (OSError, pl.exceptions.PolarsError):  # removed or replaced meanwhile
            return None

    def keep(self, derived: Derived) -> Derivation:
        """Writes what was derived into the store, whole or not at all.

        A store that cannot be written to, and a full disk, are no errors: everything will be
        computed again.

        Returns:
            The same, with the files that it is in if it could be kept.
        """
        result = Derivation.of(derived)
        code = code_digest()
        place = self.store / DERIVED
        if code is None:
            return result
        try:
            remove_abandoned(place)
            claim = Claim(temporary_name(place))
        except OSError:
            return result
        frames = {
            "columns": derived.columns,
            "host_steps": derived.host_steps,
            "device_steps": derived.device_steps,
            "doubts": derived.problems,
        }
        try:
            said: dict[str, Any] = {}
            for name, frame in frames.items():
                file = claim.directory / f"{name}.parquet"
                frame.write_parquet(file, compression="zstd", compression_level=1)
                said[name] = {"bytes": file.stat().st_size, "digest": digest_of(file)}
            manifest = {"store": self.identity, "code": code, "files": said}
            (claim.directory / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", "utf-8")
            claim.release()
            if not put_in_place(claim.directory, place, lambda: self._is_valid(place)):
                return result
        except (OSError, pl.exceptions.PolarsError):
            return result
        finally:
            claim.remove()
        return replace(result, files=_tables_in(place))

    def _is_valid(self, place: Path) -> bool:
        """Whether the files at a place are this store's, this code's, and unharmed."""
        manifest = read_manifest(place)
        code, files = code_digest(), manifest.get("files")
        if code is None or manifest.get("code") != code or manifest.get("store") != self.identity:
            return False
        if not isinstance(files, dict) or set(files) != set(_FILES):
            return False
        with contextlib.suppress(OSError, TypeError, KeyError):
            # Sizes first: they are for nothing, and tell nearly all damage.
            paths = {name: place / f"{name}.parquet" for name in _FILES}
            return all(
                path.stat().st_size == files[name]["bytes"] for name, path in paths.items()
            ) and all(digest_of(path) == files[name]["digest"] for name, path in paths.items())
        return False


def _tables_in(place: Path) -> Mapping[str, Path]:
    return {
        "derived": place / "columns.parquet",
        "host_steps": place / "host_steps.parquet",
        "device_steps": place / "device_steps.parquet",
    }
