"""Which code makes the tables: part of every store's key, so that no store outlives its reader."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_ROOM = "stepscope.trace"
_SUFFIXES = (".py", ".pyc")  # installations without sources have modules as byte code beside them


@functools.cache
def code_digest() -> str | None:
    """A digest of all modules of `stepscope.trace`, taken once for each process.

    It covers readers, classifier, schema and derivation alike, and also what cannot change a table:
    a list of what matters would have to be kept right by somebody.

    Returns:
        None where the modules cannot be read, as in a frozen program: then nothing tells what a
        store was made by, and none may be used again.
    """
    try:
        return digest_of_modules(files(_ROOM))
    except (OSError, ModuleNotFoundError):
        return None


def digest_of_modules(package: Traversable) -> str | None:
    """A digest of the names and the content of all modules in a package; None where it has none."""
    digest = hashlib.blake2b(digest_size=16)
    modules = list(_modules(package, ""))
    for name, content in modules:
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest() if modules else None


def _modules(directory: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    """Path and content of the modules in a package, in the order of their paths."""
    for entry in sorted(directory.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            if entry.name != "__pycache__":
                yield from _modules(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(_SUFFIXES):
            yield prefix + entry.name, entry.read_bytes()
