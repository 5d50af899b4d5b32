"""Converts decoded JSON to dataclasses, checking every type."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any


def decode(kind: Any, value: Any) -> Any:
    """Convert decoded JSON to the dataclass `kind`; unknown keys of newer writers are ignored.

    Args:
        kind: A dataclass, or the type of one of its fields.
        value: The decoded JSON.

    Raises:
        TypeError: A value has another type, or a field without a default is missing.
    """
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if not isinstance(value, dict):
            raise TypeError(f"{value!r} is not an object")
        hints = typing.get_type_hints(kind)
        known = {
            f.name: decode(hints[f.name], value[f.name])
            for f in dataclasses.fields(kind)
            if f.name in value
        }
        return kind(**known)
    origin = typing.get_origin(kind)
    if origin is tuple:
        if not isinstance(value, list):
            raise TypeError(f"{value!r} is not a list")
        return tuple(decode(typing.get_args(kind)[0], item) for item in value)
    if origin is dict:
        if not isinstance(value, dict):
            raise TypeError(f"{value!r} is not an object")
        item = typing.get_args(kind)[1]
        return {key: decode(item, entry) for key, entry in value.items()}
    if origin in (typing.Union, types.UnionType):
        return None if value is None else decode(typing.get_args(kind)[0], value)
    # In JSON, true is not a number; in Python, it is.
    if kind is Any or (isinstance(value, kind) and (kind is bool or not isinstance(value, bool))):
        return value
    raise TypeError(f"{value!r} is not a {kind.__name__}")
