"""Parses one event: strictly, or leniently as it was meant."""

from __future__ import annotations

import json
import re
from typing import Any

from stepscope.trace.formats.chrome.rows import Event
from stepscope.trace.formats.chrome.tolerant.event_fields import (
    DRAWN_KEYS,
    KEPT_KEYS,
    event_of,
    kept_args,
)
from stepscope.trace.formats.chrome.tolerant.json_text import (
    SURROGATE,
    after_space,
    is_cut_short,
    strict_value,
)
from stepscope.trace.formats.chrome.tolerant.lenient_json import LenientError, mended
from stepscope.trace.problems import Problems

LONGEST_EVENT = 16 * 1024 * 1024
"""Events longer than this, in characters, are treated as broken."""

_PLAIN_MEMBER = re.compile(
    r'[ \t\r\n]*"(ph|name|cat|pid|tid|ts|dur|id|s|bp)"[ \t\r\n]*:[ \t\r\n]*'
    r'(?:"([^"\\\x00-\x1f\ud800-\udfff]*)"|(-?(?:0|[1-9][0-9]{0,30})(?:\.[0-9]{1,30})?))'
    r"[ \t\r\n]*([,}])"
)
_ARGS = re.compile(r'[ \t\r\n]*"args"[ \t\r\n]*:[ \t\r\n]*(?=\{)')
_AFTER_VALUE = re.compile(r"[ \t\r\n]*([,}])")
_EMPTY = event_of({}, None, None, Problems(), 0)


class NeedMoreTextError(Exception):
    """The text ends within an event, and more may follow."""


def read_strictly(text: str, at: int, final: bool, problems: Problems) -> tuple[Event, int] | None:
    """Returns the event at `at` and the position after it; None if it is not valid JSON."""
    found = Problems()
    try:
        event, end = _read_members(text, at, found)
    except (ValueError, StopIteration, RecursionError) as error:
        if not final and len(text) - at < LONGEST_EVENT and is_cut_short(error, text):
            raise NeedMoreTextError from None
        return None
    problems.merge(found)
    return event, end


def read_leniently(text: str, at: int, final: bool, problems: Problems) -> tuple[Event, int] | None:
    """Like `read_strictly`, but for almost-valid JSON."""
    can_wait = not final and len(text) - at < LONGEST_EVENT
    try:
        standard, end = mended(text, at, not can_wait)
    except LenientError as error:
        if error.at_end and can_wait:
            raise NeedMoreTextError from None
        return None
    following = after_space(text, end)
    if following >= len(text):
        if can_wait:
            raise NeedMoreTextError
    elif text[following] not in ",]":
        return None
    if not isinstance(json.loads(standard).get("ph"), str):
        return None
    found = Problems()
    event, _ = _read_members(standard, 0, found)
    problems.merge(found.moved(lambda _: 0, at))
    problems.add("invalid_utf8" if SURROGATE.search(text, at, end) else "invalid_json", at)
    return event, end


def _read_members(text: str, at: int, problems: Problems) -> tuple[Event, int]:
    """Parses the object at `at` strictly.

    Raises:
        ValueError: The object is invalid (`json.JSONDecodeError` if the position is known).
        StopIteration: The text ends. The value is the position.
    """
    position = at
    here = at + 1
    fields: dict[str, tuple[Any, str]] = {}
    args: Any = None
    args_text: str | None = None
    is_replaced = extra = False
    while True:
        plain = _PLAIN_MEMBER.match(text, here)
        if plain is not None:
            key, word, digits, closing = plain.groups()
            # Numbers stay text: where their value is needed, it is read from the digits.
            fields[key] = (word, word) if digits is None else (0, digits)
            here = plain.end()
        else:
            opening = _ARGS.match(text, here)
            if opening is not None:
                key, start = "args", opening.end()
            else:
                start = after_space(text, here)
                if text.startswith("}", start) and not fields and args_text is None:
                    return _EMPTY, start + 1
                if not text.startswith('"', start):
                    raise json.JSONDecodeError("Expecting a key", text, start)
                key, start = strict_value(text, start)
                start = after_space(text, start)
                if not text.startswith(":", start):
                    raise json.JSONDecodeError("Expecting ':'", text, start)
                start = after_space(text, start + 1)
            value, here = strict_value(text, start)
            delimiter = _AFTER_VALUE.match(text, here)
            if delimiter is None:
                raise json.JSONDecodeError("Expecting ',' or '}'", text, here)
            if key == "args":
                args = value
                args_text, is_other = kept_args(value, text[start:here])
                is_replaced = is_replaced or is_other
            elif key in KEPT_KEYS:
                fields[key] = (value, text[start:here])
                is_kept = isinstance(value, str) and key not in DRAWN_KEYS
                is_replaced = is_replaced or (is_kept and SURROGATE.search(value) is not None)
            else:
                extra = True
            closing = delimiter.group(1)
            here = delimiter.end()
        if closing == "}":
            if extra:
                problems.add("extra_keys", position)
            if is_replaced:
                problems.add("invalid_utf8", position)
            return event_of(fields, args, args_text, problems, position), here
