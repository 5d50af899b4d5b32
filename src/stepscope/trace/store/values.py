"""Frozen dataclasses as JSON, and back, by the types that their fields declare.

Only these types are written and read: None, bool, int, float, str, bytes, paths, enumerations,
dataclasses, tuples, dictionaries and unions of them. What is read decides nothing but values: a
text of another shape, or one that names anything else, is refused as a whole.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import dataclasses
import functools
import types
import typing
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar, cast

_Value = TypeVar("_Value")
_SCALARS = (bool, int, float, str, type(None))


class UnfitError(ValueError):
    """A value is not of the declared type, or a text does not describe one."""


def to_json(kind: Any, value: Any) -> Any:
    """Returns a value as what `json.dumps` takes; `json` also keeps infinities and NaN.

    Args:
        kind: Its type, as an annotation of a field states it. Values of `Any` are scalars and
            tuples of them.
        value: The value.

    Raises:
        UnfitError: The value, or a part of it, is of another type. Subclasses count as other types,
            because they would not come back.
    """
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return _plain_to_json(value)
    if origin is tuple and type(value) is tuple:
        parts = zip(_types_of_items(inner, len(value)), value, strict=True)
        return [to_json(item, part) for item, part in parts]
    if origin is dict and type(value) is dict:
        return [[to_json(inner[0], k), to_json(inner[1], v)] for k, v in value.items()]
    if origin in (typing.Union, types.UnionType):
        return _union_to_json(inner, value)
    if not isinstance(kind, type) or not _is_of(kind, value):
        raise UnfitError(f"{type(value).__name__} where {kind} is declared")
    if dataclasses.is_dataclass(kind):
        hints = _fields_of(kind)
        return {name: to_json(hint, getattr(value, name)) for name, hint in hints.items()}
    if issubclass(kind, Enum):
        return value.value
    if issubclass(kind, Path):
        return str(value)
    if kind is bytes:
        return base64.b64encode(value).decode("ascii")
    if kind in _SCALARS:
        return value
    raise UnfitError(f"values of {kind} are not kept")


def from_json(kind: type[_Value], found: Any) -> _Value:
    """Returns the value that `to_json` described.

    Args:
        kind: Its type, as given to `to_json`.
        found: What `json.loads` returned, which may come from anywhere.

    Raises:
        UnfitError: It is not the description of such a value.
    """
    try:
        return cast(_Value, _read(kind, found))
    except UnfitError:
        raise
    except (TypeError, ValueError, KeyError, OSError) as error:
        raise UnfitError(f"no {kind}: {error}") from error


def _read(kind: Any, found: Any) -> Any:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return _plain_of_json(found)
    if origin is tuple and type(found) is list:
        parts = zip(_types_of_items(inner, len(found)), found, strict=True)
        return tuple(_read(item, part) for item, part in parts)
    if origin is dict and type(found) is list:
        return {_read(inner[0], key): _read(inner[1], value) for key, value in found}
    if origin in (typing.Union, types.UnionType):
        return _union_of_json(inner, found)
    if not isinstance(kind, type):
        raise UnfitError(f"values of {kind} are not kept")
    if dataclasses.is_dataclass(kind):
        hints = _fields_of(kind)
        if type(found) is not dict or found.keys() != hints.keys():
            raise UnfitError(f"not the fields of {kind.__name__}")
        return kind(**{name: _read(hint, found[name]) for name, hint in hints.items()})
    if issubclass(kind, Enum):
        return kind(found)
    if issubclass(kind, Path):
        return Path(_text(found))
    if kind is bytes:
        return _bytes(found)
    if kind in _SCALARS and _is_of(kind, found):
        return found
    raise UnfitError(f"{type(found).__name__} where {kind.__name__} is declared")


def _is_of(kind: type, value: Any) -> bool:
    """Whether a value is of a type, and not of a subclass; as everywhere, an int is a float."""
    if issubclass(kind, Path):
        return isinstance(value, Path)
    return type(value) is kind or (kind is float and type(value) is int)


@functools.cache
def _fields_of(kind: type) -> dict[str, Any]:
    """The types of a dataclass's fields, by name."""
    try:
        hints = typing.get_type_hints(kind)
    except NameError as error:
        raise UnfitError(f"{kind.__name__}: {error}") from error
    return {one.name: hints[one.name] for one in dataclasses.fields(kind)}


def _types_of_items(inner: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    """The type of each item of a tuple."""
    if len(inner) == 2 and inner[1] is Ellipsis:
        return (inner[0],) * count
    if len(inner) != count:
        raise UnfitError(f"{count} items where {len(inner)} are declared")
    return inner


def _union_to_json(members: tuple[Any, ...], value: Any) -> Any:
    """The number of the member that a value is of, and the value."""
    for number, member in enumerate(members):
        with contextlib.suppress(UnfitError):
            return [number, to_json(member, value)]
    raise UnfitError(f"{type(value).__name__} is none of {members}")


def _union_of_json(members: tuple[Any, ...], found: Any) -> Any:
    number, value = found
    if type(number) is not int or not 0 <= number < len(members):
        raise UnfitError(f"no member {number!r}")
    return _read(members[number], value)


def _plain_to_json(value: Any) -> Any:
    if type(value) is tuple:
        return [_plain_to_json(item) for item in value]
    if type(value) in _SCALARS:
        return value
    raise UnfitError(f"{type(value).__name__} where any scalar is declared")


def _plain_of_json(found: Any) -> Any:
    if type(found) is list:
        return tuple(_plain_of_json(item) for item in found)
    if type(found) in _SCALARS:
        return found
    raise UnfitError(f"{type(found).__name__} where any scalar is declared")


def _text(found: Any) -> str:
    if type(found) is not str:
        raise UnfitError(f"{type(found).__name__} where a text is declared")
    return found


def _bytes(found: Any) -> bytes:
    try:
        return base64.b64decode(_text(found), validate=True)
    except binascii.Error as error:
        raise UnfitError(f"not base64: {error}") from error
