"""Turns the fields of an event, from any parser, into an `Event`."""

from __future__ import annotations

import hashlib
import re
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from typing import Any

from stepscope.trace.formats.chrome.rows import INT64_MAX, INT64_MIN, UINT64_MAX, Event
from stepscope.trace.formats.chrome.tolerant.json_text import (
    clean,
    standard_text,
    without_surrogates,
)
from stepscope.trace.problems import Problems

_PLAIN = re.compile(r"(-?)([0-9]{1,30})(?:\.([0-9]{1,30}))?", re.ASCII)
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,39})", re.ASCII)

KEPT_KEYS = frozenset(
    ("ph", "name", "cat", "pid", "tid", "ts", "dur", "id", "args", "s", "bp", "sf", "cname")
)
"""Keys of an event that the tables hold, or that only matter for drawing."""
DRAWN_KEYS = frozenset(("sf", "cname"))
"""Those of them whose values no table has."""
_MOST_UNPARSED = 1_000_000
"""Characters kept of an event beyond repair."""
_NO_NUMBERS = (None, None, None, None, None)
# Fields that are recognised in an event beyond repair.
_SALVAGED = {
    key: re.compile(rf'"{key}"\s*:\s*(?:"([^"\n]*)"|(-?[0-9][0-9.eE+-]*))')
    for key in ("ph", "name", "cat", "pid", "tid", "ts", "dur", "id")
}


def nanoseconds(text: str) -> int | None:
    """Converts microseconds to nanoseconds exactly, rounding half to even.

    Args:
        text: A JSON number, or the content of a string with a number.

    Returns:
        None if the text is not a number or the result does not fit int64.
    """
    whole, dot, fraction = text.partition(".")
    # Most times are like this: under thirty years, to the nanosecond.
    if (
        len(whole) < 16
        and len(fraction) < 4
        and text.isascii()
        and whole.isdigit()
        and (fraction.isdigit() or not dot)
    ):
        return int(whole + (fraction + "000")[:3])
    match = _PLAIN.fullmatch(text)
    if match is not None:
        sign, whole, fraction = match.groups("")
        if len(fraction) <= 3:
            value = int(whole) * 1000 + (int(fraction.ljust(3, "0")) if fraction else 0)
            value = -value if sign else value
            return value if INT64_MIN <= value <= INT64_MAX else None
    try:
        number = Decimal(text.strip())
    except InvalidOperation:
        return None
    if not number.is_finite() or number.adjusted() > 20 or "_" in text or not text.isascii():
        return None
    if number.adjusted() < -30:
        return 0
    negative, digits, exponent = number.as_tuple()
    shifted = Decimal((negative, digits, int(exponent) + 3))
    value = int(shifted.to_integral_value(ROUND_HALF_EVEN))
    return value if INT64_MIN <= value <= INT64_MAX else None


def integer(text: str) -> int | None:
    """Returns the value of a JSON integer; None for anything else (12.0, 1e3, "7")."""
    return int(text) if _INTEGER.fullmatch(text) else None


def event_of(
    fields: dict[str, tuple[Any, str]], args: Any, args_text: str | None,
    problems: Problems, position: int,
) -> Event:  # fmt: skip
    """Returns the event described by some fields.

    Args:
        fields: For each key, the value and its text in the file.
        args_text: The text of the arguments to keep.
    """
    nothing = (None, "")
    arguments = args if isinstance(args, dict) else {}
    name = _word(*fields.get("name", nothing))
    return Event(
        _word(*fields.get("ph", nothing)),
        "" if name is None else name,
        _word(*fields.get("cat", nothing)),
        _lane_word(*fields.get("pid", nothing)),
        _lane_word(*fields.get("tid", nothing)),
        _time(*fields.get("ts", nothing)),
        _time(*fields.get("dur", nothing)),
        _flow_id(*fields["id"]) if "id" in fields else None,
        *_numbers_of(arguments, problems, position),
        args_text,
    )


def _numbers_of(
    arguments: dict[str, Any], problems: Problems, position: int
) -> tuple[int | None, int | None, int | None, int | None, int | None]:
    if not arguments:
        return _NO_NUMBERS
    asked = arguments.get
    external = asked("External id", asked("external id"))
    return (
        _identifier(asked("correlation"), problems, position),
        _identifier(external, problems, position),
        _number(asked("device")),
        _number(asked("stream")),
        _number(asked("bytes")),
    )


def salvaged_event(text: str, problems: Problems, position: int) -> Event | None:
    """Returns an event with the fields recognised in broken text, if there are enough."""
    fields: dict[str, tuple[Any, str]] = {}
    for key, pattern in _SALVAGED.items():
        match = pattern.search(text)
        if match is not None:
            word, digits = match.groups()
            fields[key] = (word, word) if digits is None else (0, digits)
    if "ph" not in fields or "ts" not in fields or "name" not in fields:
        return None
    kept = {"unparsed": text[:_MOST_UNPARSED]}
    if len(text) > _MOST_UNPARSED:
        kept["and more"] = f"{len(text) - _MOST_UNPARSED} characters"
    return event_of(fields, None, standard_text(kept), problems, position)


def kept_args(value: Any, raw: str) -> tuple[str | None, bool]:
    """Returns the text of the arguments to keep, and whether something in it had to be replaced.

    It is as in the file, except for bytes that are not UTF-8 and unpaired surrogates.
    """
    if value is None:
        return None, False
    if raw.isascii() and "\\u" not in raw:
        return raw, False
    text = without_surrogates(raw)
    return text, text != raw


def _flow_id(value: Any, raw: str) -> int | None:
    """Returns `id` as an unsigned integer: numbers as they are, other strings hashed."""
    if isinstance(value, str):
        try:
            number = int(value, 16 if value[:2].lower() == "0x" else 10) if len(value) < 40 else -1
        except ValueError:
            number = -1
        if 0 <= number <= UINT64_MAX:
            return number
        digest = hashlib.blake2b(value.encode("utf-8", "replace"), digest_size=8).digest()
        return int.from_bytes(digest, "little")
    number_or_none = integer(raw)
    if number_or_none is None or not 0 <= number_or_none <= UINT64_MAX:
        return None
    return number_or_none


def _word(value: Any, raw: str) -> str | None:
    """Returns a name: strings as they are, None for null, other values as text."""
    if isinstance(value, str):
        return clean(value)
    return None if value is None else clean(raw)


def _lane_word(value: Any, raw: str) -> str | None:
    if isinstance(value, str):
        return clean(value)
    return raw if isinstance(value, int | float) and not isinstance(value, bool) else None


def _time(value: Any, raw: str) -> int | None:
    if isinstance(value, str):
        return nanoseconds(value)
    return nanoseconds(raw) if isinstance(value, int | float) and value is not True else None


def _identifier(value: Any, problems: Problems, position: int) -> int | None:
    if type(value) is not int or value < 0:
        return None
    if value > UINT64_MAX:
        problems.add("identifier_out_of_range", position)
        return None
    return value


def _number(value: Any) -> int | None:
    return value if type(value) is int and abs(value) <= INT64_MAX else None
