"""Values as JSON; and back, by the types that the fields of frozen dataclasses declare.

Only these types are read: None, bool, int, float, str, bytes, paths, enumerations, dataclasses,
tuples, dictionaries by text or int, and unions of them. What is read decides nothing but values: a
text of another shape, or one that names anything else, is refused as a whole. Data frames are only
written, by their digest, so that keys can depend on them: polars may panic on damaged ones.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import sys
import types
import typing
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar, cast

_Value = TypeVar("_Value")
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
        return cast(_Value, _read(kind, json.loads(text)))
    except UnfitError:
        raise
    except (TypeError, ValueError, KeyError, OSError, RecursionError) as error:
        raise UnfitError(f"no {kind}: {error}") from error


def _read(kind: Any, found: Any) -> Any:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return _scalars(found)
    if origin is tuple and type(found) is list:
        parts = zip(_types_of_items(inner, len(found)), found, strict=True)
        return tuple(_read(item, part) for item, part in parts)
    if origin is dict and type(found) is dict:
        read_key = int if inner[0] is int else functools.partial(_read, inner[0])
        return {read_key(key): _read(inner[1], value) for key, value in found.items()}
    if origin in (typing.Union, types.UnionType):
        return _read_member(inner, found)
    if not isinstance(kind, type):
        raise UnfitError(f"values of {kind} are not kept")
    if dataclasses.is_dataclass(kind):
        return _read_dataclass(kind, found)
    if issubclass(kind, Enum):
        return kind(found)
    if issubclass(kind, Path):
        return Path(_read(str, found))
    if kind is bytes:
        return base64.b64decode(_read(str, found), validate=True)
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
    return kind(**{name: _read(hint, fields[name]) for name, hint in hints.items()})


def _read_member(members: tuple[Any, ...], found: Any) -> Any:
    """The value as the first member of a union that it fits."""
    if found is None and type(None) in members:
        return None
    for member in members:
        with contextlib.suppress(UnfitError):
            return _read(member, found)
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
