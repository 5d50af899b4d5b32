"""Option values as text: parse words, numbers and sizes, and format them for people.

A parser raises `ValueError` with what it expected.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

_TRUE = {"true", "yes", "on", "1", "t", "y"}
_FALSE = {"false", "no", "off", "0", "f", "n"}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*([smh]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def is_none(value: object) -> bool:
    """Whether a value means that an option is unset."""
    return value is None or str(value).strip().lower() in {"none", ""}


def parse_bool(value: object) -> bool:
    """Parse a word or a boolean."""
    word = str(value).strip().lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise ValueError("true or false")


def parse_size(value: object) -> int:
    """Parse a size in bytes, such as "500MB" (powers of 1000) or "2GiB" (powers of 1024)."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(str(value).strip())
    if match is None:
        raise ValueError("a size such as 500MB or 2GiB")
    base = 1024 if match.group(3) else 1000
    factor: int = base ** _POWERS[match.group(2).lower()]
    return round(Fraction(match.group(1)) * factor)


def parse_seconds(text: str) -> float:
    """Parse a time above 0, such as "90s", "10m" or "1.5h"; a bare number is in seconds."""
    match = _TIME.fullmatch(text.strip())
    seconds = float(match.group(1)) * _SECONDS[match.group(2)] if match is not None else 0.0
    if seconds <= 0:
        raise ValueError("a time such as 90s, 10m or 1h")
    return seconds


def _whole(value: object) -> int:
    try:
        if not isinstance(value, bool) and isinstance(value, (int, str)):
            return int(value)
    except ValueError:
        pass
    raise ValueError("a whole number")


def _number(value: object) -> float:
    try:
        if not isinstance(value, bool) and isinstance(value, (int, float, str)):
            number = float(value)
            if math.isfinite(number):
                return number
    except ValueError:
        pass
    raise ValueError("a number")


def _parts(value: object) -> Any:
    return re.split(r"[,\s]+", value.strip()) if isinstance(value, str) else value


def _pair(value: object) -> tuple[int, int]:
    parts = _parts(value)
    if not isinstance(parts, Sequence) or len(parts) != 2:
        raise ValueError("two whole numbers such as 10,20")
    return _whole(parts[0]), _whole(parts[1])


def _several(value: object) -> str | tuple[Any, ...]:
    """Words or ranks: a single text stays a text, and a list of digits becomes numbers."""
    if isinstance(value, int) and not isinstance(value, bool):
        return (value,)
    parts = _parts(value)
    if not isinstance(parts, Sequence) or not parts:
        raise ValueError("a list")
    if all(isinstance(part, int) or str(part).isdecimal() for part in parts):
        return tuple(int(part) for part in parts)
    return str(parts[0]) if len(parts) == 1 else tuple(str(part) for part in parts)


PARSERS: dict[str, Callable[[object], Any]] = {
    "bool": parse_bool,
    "int": _whole,
    "float": _number,
    "size": parse_size,
    "pair": _pair,
    "ranks": _several,
    "words": _several,
}
"""Kind of option to the parser of its values; values of other kinds are texts."""


def as_text(value: object) -> str:
    """A value as a person would write it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(value)


def size_as_text(size_bytes: int) -> str:
    """A size as a person would write it, which `parse_size` reads as the same: "256MiB"."""
    for unit, power in (("GiB", 3), ("MiB", 2), ("KiB", 1)):
        number, rest = divmod(size_bytes, 1024**power)
        if number and not rest:
            return f"{number}{unit}"
    return str(size_bytes)
