"""The one way in and out for JSON beside a trace: step records, manifests, what other tools wrote.

Whoever wrote such a file may be hostile, or have a fault. Its values meet the limits of those of
traces, so that tables can hold them: a whole number of more than 64 bits is a float, which no
reader takes for a whole number, and half of a surrogate pair is U+FFFD. What is written may name
files, whose names on Linux are bytes and need not be UTF-8.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson

LARGEST = 2**63 - 1
"""The largest whole number."""
_LONG_NUMBER = re.compile(rb"\d{20}|9[2-9]\d{17}")
_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile(
    r"(?<!\\)((?:\\\\)*)(\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u[dD][89a-fA-F]..)"
)


def parse_json(data: bytes) -> Any:
    """Returns what a JSON text says.

    Raises:
        ValueError: It is no JSON, or nested too deeply.
    """
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError:
        if not _ESCAPED_SURROGATE.search(data):
            raise
        found = orjson.loads(_SURROGATE.sub(_whole_pair, data.decode("utf-8", "replace")))
    return _held(found) if _LONG_NUMBER.search(data) else found


def whole_number(digits: str) -> int | float:
    """Returns the number that digits say: a float where 64 bits do not hold it."""
    number = float(digits) if len(digits) > 20 else int(digits)
    return int(number) if -LARGEST <= number <= LARGEST else float(number)


def _whole_pair(found: re.Match[str]) -> str:
    return found[0] if len(found[2]) > 6 else f"{found[1]}\ufffd"


def _held(value: Any) -> Any:
    """Returns a value with whole numbers that tables can hold. orjson has limited its depth."""
    if type(value) is int and not -LARGEST <= value <= LARGEST:
        return float(value)
    if isinstance(value, dict):
        return {key: _held(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_held(item) for item in value]
    return value


_SURROGATES = re.compile("[\ud800-\udfff]")


def utf8_json(value: Any, option: int = 0, default: Callable[[Any], Any] | None = None) -> bytes:
    """A value as JSON. What is not UTF-8 in its texts becomes U+FFFD.

    Args:
        default: Converts values that orjson does not know.

    Raises:
        TypeError: The value holds something that JSON cannot hold.
    """
    try:
        return orjson.dumps(value, option=option, default=default)
    except TypeError:  # nearly never, so that nothing is searched first
        return orjson.dumps(_as_utf8(value), option=option, default=default)


def _as_utf8(value: Any) -> Any:
    if isinstance(value, str):
        return _SURROGATES.sub("\ufffd", value)
    if isinstance(value, Mapping):
        return {_as_utf8(key): _as_utf8(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_utf8(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: _as_utf8(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    return value


def decode(kind: Any, value: Any) -> Any:
    """Convert decoded JSON to the dataclass `kind`; unknown keys of newer writers are ignored.

    Args:
        kind: A dataclass, or the type of one of its fields.

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
    if origin in (dict, Mapping):
        if not isinstance(value, dict):
            raise TypeError(f"{value!r} is not an object")
        key_kind, item = typing.get_args(kind)
        return {key_kind(key): decode(item, entry) for key, entry in value.items()}
    if origin in (typing.Union, types.UnionType):
        return None if value is None else decode(typing.get_args(kind)[0], value)
    if kind is Path:
        return Path(decode(str, value))
    # In JSON, true is not a number; in Python, it is.
    if kind is Any or (isinstance(value, kind) and (kind is bool or not isinstance(value, bool))):
        return value
    raise TypeError(f"{value!r} is not a {kind.__name__}")
