"""Memos: what was worked out about traces, kept in the user's cache directory.

Working an answer out takes seconds, and the answer is small. Everything that it depends on is in
the key of its memo: the content of the traces and other files, what was asked, and the code that
answers. So a memo is never out of date; one that does not hold in any way is not found, and the
answer is worked out again.

`memos-UID/` holds one file per memo, named after its key: a line with a digest, and the value as
JSON (`values.py`). As everything in a store, it is believed only if nobody else could have written
it (`owners.py`). Reading one needs neither the traces' tables nor polars.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from stepscope.errors import StepscopeError
from stepscope.run.files import write_atomically
from stepscope.trace.store.code import code_digest
from stepscope.trace.store.contents import is_own_directory
from stepscope.trace.store.directory import read_believed
from stepscope.trace.store.origin import memo_directory
from stepscope.trace.store.values import decode, encode

MOST_MEMOS = 2_000
"""Memos of one user; of more, those that were used longest ago are removed."""
MOST_BYTES_TOGETHER = 256_000_000
"""Size of all memos of one user, likewise."""
MOST_BYTES = 16_000_000
"""Size of the largest one that is kept."""
_WRITES_PER_CHECK = 16
_PACKAGE = "stepscope"

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Memo(Generic[_Value]):
    """A value that was worked out before, or will be.

    Attributes:
        kind: Its type, a dataclass.
        inputs: Returns all that the value depends on apart from code: what was asked, as
            dataclasses, frames and plain values, and files by `origin.identity_of`. If it raises a
            `StepscopeError`, or returns anything else, nothing is kept.
    """

    kind: type[_Value]
    inputs: Callable[[], Any]

    def find(self) -> _Value | None:
        """The value; None if it is not kept."""
        key = self._key()
        try:
            return None if key is None else decode(self.kind, _read(key))
        except (OSError, ValueError):
            return None

    def make(
        self, make: Callable[[], _Value], is_kept: Callable[[_Value], bool] = lambda _: True
    ) -> _Value:
        """Work the value out, and keep it if nothing that it depends on changed meanwhile.

        Args:
            is_kept: Whether it would be the same the next time.
        """
        before = self._key()
        made = make()
        if before is not None and is_kept(made) and self._key() == before:
            with contextlib.suppress(OSError, TypeError, ValueError):
                _write(before, encode(made))
        return made

    def _key(self) -> str | None:
        """Stands for all that the value depends on; None if some of it cannot be identified."""
        code = code_digest(_PACKAGE)
        if code is None:
            return None
        try:
            text = encode([self.kind.__name__, code, self.inputs()])
        except (StepscopeError, OSError, TypeError, ValueError):
            return None
        return hashlib.blake2b(text, digest_size=16).hexdigest()


def _read(key: str) -> bytes:
    """The JSON under a key.

    Raises:
        OSError: There is none, or it is not believed.
        ValueError: It is damaged.
    """
    path = memo_directory() / key
    if not is_own_directory(path.parent):
        raise NotADirectoryError(str(path.parent))
    head, _, body = read_believed(path, MOST_BYTES).partition(b"\n")
    if head != _digest(key, body):
        raise ValueError(f"{path}: damaged")
    with contextlib.suppress(OSError):  # it may be read-only
        os.utime(path)
    return body


def _write(key: str, body: bytes) -> None:
    """Keeps the JSON under a key, completely or not at all.

    Raises:
        OSError: It cannot be written: it is worked out again next time.
    """
    path = memo_directory() / key
    if len(body) > MOST_BYTES - 100:
        return
    path.parent.mkdir(0o700, parents=True, exist_ok=True)
    if is_own_directory(path.parent):
        write_atomically(path, _digest(key, body) + b"\n" + body)
        path.chmod(0o600)  # whatever the user's mask allows
        _remove_unused(path.parent)


def _digest(key: str, body: bytes) -> bytes:
    return hashlib.blake2b(body, key=key.encode("ascii"), digest_size=16).hexdigest().encode()


def _remove_unused(directory: Path) -> None:
    """Removes the memos used longest ago, and with them what killed processes left unfinished."""
    names = os.listdir(directory)  # noqa: PTH208 - pathlib is slow here
    if len(names) <= MOST_MEMOS and len(names) % _WRITES_PER_CHECK:
        return
    found = []
    for name in names:
        with contextlib.suppress(FileNotFoundError):  # another process removed it
            status = (directory / name).lstat()
            if stat.S_ISREG(status.st_mode):
                found.append((status.st_mtime_ns, status.st_size, name))
    if len(found) <= MOST_MEMOS and sum(size for _, size, _ in found) <= MOST_BYTES_TOGETHER:
        return
    # Some more than the limit, or the next one written would have all looked at again.
    kept_bytes, most, most_bytes = 0, MOST_MEMOS * 7 // 8, MOST_BYTES_TOGETHER * 7 // 8
    for number, (_, size_bytes, name) in enumerate(sorted(found, reverse=True)):
        kept_bytes += size_bytes
        if number >= most or kept_bytes > most_bytes:
            (directory / name).unlink(missing_ok=True)
