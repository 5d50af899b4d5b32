"""A digest of the code that makes what a store holds, part of every store's key."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

TABLES_PACKAGE = "stepscope.trace"
_SUFFIXES = (".py", ".pyc", ".css", ".js")
"""Installations without sources have .pyc files; a page that is kept holds styles and scripts."""


@functools.cache
def code_digest(package: str = TABLES_PACKAGE) -> str | None:
    """Returns a digest of all modules of a package, computed once per process.

    Of `stepscope.trace`, it covers readers, classifier, schema and derivation. It also covers
    modules that cannot change a table, because a list of the ones that can would have to be
    maintained by hand.

    Returns:
        None if the modules cannot be read, as in a frozen program. No store can be reused then.
    """
    try:
        return digest_of_modules(files(package))
    except (OSError, ModuleNotFoundError):
        return None


def digest_of_modules(package: Traversable) -> str | None:
    """Returns a digest of the paths and contents of a package's modules; None if it has none."""
    digest = hashlib.blake2b(digest_size=16)
    modules = list(_modules(package, ""))
    for name, content in modules:
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest() if modules else None


def _modules(directory: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    """Yields path and content of each module, sorted by path."""
    for entry in sorted(directory.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            if entry.name != "__pycache__":
                yield from _modules(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(_SUFFIXES):
            yield prefix + entry.name, entry.read_bytes()
