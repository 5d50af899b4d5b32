"""The one way in for JSON beside a trace: step records, manifests, dumps, what other tools wrote.

Whoever wrote such a file may be hostile, or have a fault. Its values meet the limits of those of
traces, so that tables can hold them: a whole number of more than 64 bits is a float, which no
reader takes for a whole number, and half of a surrogate pair is U+FFFD.
"""

from __future__ import annotations

import re
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
