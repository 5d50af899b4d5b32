"""Turns the fields of an event, from any parser, into an `Event`."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import orjson

from stepscope.trace.formats.chrome.json_text import SURROGATE, clean, standard_text
from stepscope.trace.formats.chrome.numbers import integer, nanoseconds
from stepscope.trace.formats.chrome.rows import INT64_MAX, UINT64_MAX, Event
from stepscope.trace.problems import Problems

KEPT_KEYS = frozenset(
    ("ph", "name", "cat", "pid", "tid", "ts", "dur", "id", "args", "s", "bp", "sf", "cname")
)
"""Keys of an event that the tables hold, or that only matter for drawing."""

_MOST_UNPARSED = 1_000_000
"""Characters kept of an event beyond repair."""
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

# Fields that are recognised in an event beyond repair.
_SALVAGED = {
    key: re.compile(rf'"{key}"\s*:\s*(?:"([^"\n]*)"|(-?[0-9][0-9.eE+-]*))')
    for key in ("ph", "name", "cat", "pid", "tid", "ts", "dur", "id")
}


def event_of(
    fields: dict[str, tuple[Any, str]], args: Any, args_text: str | None,
    problems: Problems, position: int,
) -> Event:  # fmt: skip
    """Returns the event described by some fields.

    Args:
        fields: For each key, the value and its text in the file.
        args: The value of the arguments.
        args_text: The text of the arguments to keep.
        problems: Collects what cannot be kept.
        position: Start of the event.
    """
    nothing = (None, "")
    arguments = args if isinstance(args, dict) else {}
    external = arguments.get("External id", arguments.get("external id"))
    name = _word(*fields.get("name", nothing))
    return Event(
        phase=_word(*fields.get("ph", nothing)),
        name="" if name is None else name,
        category=_word(*fields.get("cat", nothing)),
        pid=_lane_word(*fields.get("pid", nothing)),
        tid=_lane_word(*fields.get("tid", nothing)),
        time_ns=_time(*fields.get("ts", nothing)),
        dur_ns=_time(*fields.get("dur", nothing)),
        flow_id=_flow_id(*fields["id"]) if "id" in fields else None,
        correlation=_identifier(arguments.get("correlation"), problems, position),
        external_id=_identifier(external, problems, position),
        device=_number(arguments.get("device")),
        stream=_number(arguments.get("stream")),
        bytes=_number(arguments.get("bytes")),
        args=args_text,
    )


def event_of_object(value: dict[str, Any], problems: Problems, position: int) -> Event:
    """Returns the event for an object from the lenient parser."""
    fields: dict[str, tuple[Any, str]] = {}
    for key, item in value.items():
        if key in KEPT_KEYS and key != "args":
            fields[key] = (item, item if isinstance(item, str) else standard_text(item))
    args = value.get("args")
    text = None if args is None else standard_text(args)
    if any(key not in KEPT_KEYS for key in value):
        problems.add("extra_keys", position)
    return event_of(fields, args, text, problems, position)


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


def kept_args(value: Any, raw: str, problems: Problems, position: int) -> str | None:
    """Returns the text of the arguments as in the file, or an equivalent valid text."""
    if value is None:
        return None
    if SURROGATE.search(raw) or _ESCAPED_SURROGATE.search(raw):
        try:
            orjson.loads(raw)
        except (orjson.JSONDecodeError, UnicodeEncodeError):
            problems.add("invalid_utf8", position)
            return standard_text(value)
    return raw


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
