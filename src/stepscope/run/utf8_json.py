"""JSON of values that may name files: names on Linux are bytes, and need not be UTF-8."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import orjson

_SURROGATES = re.compile("[\ud800-\udfff]")


def utf8_json(value: Any, option: int = 0, default: Callable[[Any], Any] | None = None) -> bytes:
    """A value as JSON. What is not UTF-8 in its texts becomes U+FFFD.

    Args:
        value: The value.
        option: Options of orjson.
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
