"""Memos: what was worked out about traces, kept in the user's cache directory.

Working an answer out takes seconds, and the answer is small. Everything that it depends on is in
the key of its memo: the content of the traces and other files, what was asked, and the code that
answers. So a memo is never out of date; one that does not hold in any way is not found, and the
answer is worked out again.

`memos-UID/` holds one file per memo, named after its key: a line with a digest, and the value as
JSON. As everything in a store, it is believed only if nobody else could have written it
(`owners.py`). Reading one needs neither the traces' tables nor polars.

Values are read by the types that the fields of frozen dataclasses declare, and only these: None,
bool, int, float, str, bytes, paths, enumerations, dataclasses, tuples, dictionaries by text or int,
and unions of them. What is read decides nothing but values: a text of another shape, or one that
names anything else, is refused as a whole. Data frames are only written, by their digest, so that
keys can depend on them: polars may panic on damaged ones.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import os
import stat
import sys
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from stepscope.errors import StepscopeError
from stepscope.run.files import write_atomically
from stepscope.trace.store.code import code_digest
from stepscope.trace.store.contents import is_own_directory
from stepscope.trace.store.directory import read_believed
from stepscope.trace.store.origin import memo_directory

MOST_MEMOS = 8_000
"""Memos of one user; of more, those that were used longest ago are removed. A job of 1,024 ranks
leaves twice as many."""
MOST_BYTES_TOGETHER = 256_000_000
"""Size of all memos of one user, likewise."""
MOST_BYTES = 16_000_000
"""Size of the largest one that is kept."""
_WRITES_PER_CHECK = 64
"""One in so many writes, by the key, looks at all that is kept, which takes milliseconds."""
_LARGE_BYTES = 1_000_000
"""Size from which each write does."""
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
        if len(body) >= _LARGE_BYTES or int(key, 16) % _WRITES_PER_CHECK == 0:
            _remove_unused(path.parent)


def _digest(key: str, body: bytes) -> bytes:
    return hashlib.blake2b(body, key=key.encode("ascii"), digest_size=16).hexdigest().encode()


def _remove_unused(directory: Path) -> None:
    """Removes the memos used longest ago, and with them what killed processes left unfinished."""
    found = []
    with os.scandir(directory) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # another process removed it
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    found.append((status.st_mtime_ns, status.st_size, entry.name))
    if len(found) <= MOST_MEMOS and sum(size for _, size, _ in found) <= MOST_BYTES_TOGETHER:
        return
    # Some more than the limit, or the next one written would have all looked at again.
    kept_bytes, most, most_bytes = 0, MOST_MEMOS * 7 // 8, MOST_BYTES_TOGETHER * 7 // 8
    for number, (_, size_bytes, name) in enumerate(sorted(found, reverse=True)):
        kept_bytes += size_bytes
        if number >= most or kept_bytes > most_bytes:
            (directory / name).unlink(missing_ok=True)


_SCALARS = (bool, int, float, str, type(None))


class UnfitError(ValueError):
    """A text does not describe a value of the declared type."""


def encode(value: Any) -> bytes:
    """Returns a value as JSON, with infinities and NaN.

    Raises:
        TypeError: A part of it is of a type that cannot be described.
        ValueError: It contains itself.
    """
    return json.dumps(value, default=_described, separators=(",", ":")).encode("ascii")


def _described(value: Any) -> Any:
    """What `json.dumps` takes for a value that it does not know."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
        return [type(value).__name__, fields]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    polars = sys.modules.get("polars")  # not imported for its own sake
    if polars is not None and isinstance(value, polars.DataFrame):
        written = io.BytesIO()
        value.rechunk().write_ipc(written)
        return hashlib.blake2b(written.getbuffer(), digest_size=16).hexdigest()
    raise TypeError(f"values of {type(value).__name__} are not kept")


def decode(kind: type[_Value], text: str | bytes) -> _Value:
    """Returns the value that `encode` described.

    Args:
        kind: Its type, as an annotation of a field states it. Values of `Any` are scalars and
            tuples of them.
        text: The JSON, which may come from anywhere.

    Raises:
        UnfitError: It is not the description of such a value.
    """
    try:
        return cast(_Value, _decoded(kind, json.loads(text)))
    except UnfitError:
        raise
    except (TypeError, ValueError, KeyError, OSError, RecursionError) as error:
        raise UnfitError(f"no {kind}: {error}") from error


def _decoded(kind: Any, found: Any) -> Any:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return _scalars(found)
    if origin is tuple and type(found) is list:
        parts = zip(_types_of_items(inner, len(found)), found, strict=True)
        return tuple(_decoded(item, part) for item, part in parts)
    if origin is dict and type(found) is dict:
        read_key = int if inner[0] is int else functools.partial(_decoded, inner[0])
        return {read_key(key): _decoded(inner[1], value) for key, value in found.items()}
    if origin in (typing.Union, types.UnionType):
        return _read_member(inner, found)
    if not isinstance(kind, type):
        raise UnfitError(f"values of {kind} are not kept")
    if dataclasses.is_dataclass(kind):
        return _read_dataclass(kind, found)
    if issubclass(kind, Enum):
        return kind(found)
    if issubclass(kind, Path):
        return Path(_decoded(str, found))
    if kind is bytes:
        return base64.b64decode(_decoded(str, found), validate=True)
    # As everywhere, an int is a float.
    if kind in _SCALARS and (type(found) is kind or (kind is float and type(found) is int)):
        return found
    raise UnfitError(f"{type(found).__name__} where {kind.__name__} is declared")


def _read_dataclass(kind: type, found: Any) -> Any:
    if type(found) is not list or len(found) != 2 or found[0] != kind.__name__:
        raise UnfitError(f"no {kind.__name__}")
    hints, fields = _fields_of(kind), found[1]
    if type(fields) is not dict or fields.keys() != hints.keys():
        raise UnfitError(f"not the fields of {kind.__name__}")
    return kind(**{name: _decoded(hint, fields[name]) for name, hint in hints.items()})


def _read_member(members: tuple[Any, ...], found: Any) -> Any:
    """The value as the first member of a union that it fits."""
    if found is None and type(None) in members:
        return None
    for member in members:
        with contextlib.suppress(UnfitError):
            return _decoded(member, found)
    raise UnfitError(f"{type(found).__name__} is none of {members}")


@functools.cache
def _fields_of(kind: type) -> dict[str, Any]:
    try:
        hints = typing.get_type_hints(kind)
    except NameError as error:
        raise UnfitError(f"{kind.__name__}: {error}") from error
    return {one.name: hints[one.name] for one in dataclasses.fields(kind)}


def _types_of_items(inner: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    if len(inner) == 2 and inner[1] is Ellipsis:
        return (inner[0],) * count
    if len(inner) != count:
        raise UnfitError(f"{count} items where {len(inner)} are declared")
    return inner


def _scalars(found: Any) -> Any:
    if type(found) is list:
        return tuple(_scalars(item) for item in found)
    if type(found) in _SCALARS:
        return found
    raise UnfitError(f"{type(found).__name__} where any scalar is declared")
