"""Reads the list of events of a Chrome trace from its text, one event at a time, tolerantly.

This is the complete reader: it knows every layout, repairs what can be repaired and reports it.
It is also what decides about every event that the compiled scanner does not recognise.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import orjson

from stepscope.trace.formats.chrome.lenient_json import LenientError, read_lenient
from stepscope.trace.formats.chrome.numbers import integer, nanoseconds
from stepscope.trace.formats.chrome.rows import INT64_MAX, UINT64_MAX, Event
from stepscope.trace.problems import Problems

LONGEST_EVENT = 32 * 1024 * 1024
"""An event that is still not complete after so many characters is taken as broken."""

KEPT_KEYS = frozenset(
    ("ph", "name", "cat", "pid", "tid", "ts", "dur", "id", "args", "s", "bp", "sf", "cname")
)
"""Keys of an event that the tables have a place for, or that only tell a viewer how to draw."""

_SPACE = re.compile(r"[ \t\r\n]*")
_PLAIN_MEMBER = re.compile(
    r'[ \t\r\n]*"(ph|name|cat|pid|tid|ts|dur|id|s|bp)"[ \t\r\n]*:[ \t\r\n]*'
    r'(?:"([^"\\\x00-\x1f\ud800-\udfff]*)"|(-?(?:0|[1-9][0-9]{0,30})(?:\.[0-9]{1,30})?))'
    r"[ \t\r\n]*([,}])"
)
_ARGS = re.compile(r'[ \t\r\n]*"args"[ \t\r\n]*:[ \t\r\n]*(?=\{)')
_AFTER_VALUE = re.compile(r"[ \t\r\n]*([,}])")
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_CANDIDATE = re.compile(r'\{\s*"(?:ph|cat|name|pid|tid|ts|dur|id|args|s|bp)"\s*:')
_LIST_END = re.compile(r'\}\s*(\]\s*(?:\}|,\s*"[^"\n]{1,200}"\s*:|$))')
_PATIENCE = 64
_NEVER_CUT = 12  # an error this close to the end of the text may be for want of text

# What is recognised in an event that is beyond repair.
_SALVAGED = {
    key: re.compile(rf'"{key}"\s*:\s*(?:"([^"\n]*)"|(-?[0-9][0-9.eE+-]*))')
    for key in ("ph", "name", "cat", "pid", "tid", "ts", "dur", "id")
}


class _UnusualConstantError(ValueError):
    """NaN or an infinity: JSON for Python, but not for anybody else."""


def _refuse_constant(word: str) -> Any:
    raise _UnusualConstantError(word)


strict_value: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder(
    parse_constant=_refuse_constant
).scan_once  # type: ignore[attr-defined]
"""Reads a JSON value: (text, position) -> (value, position after it); raises ValueError, or
StopIteration at the end of the text."""


class Outcome(Enum):
    """Why reading a stretch came to a stop."""

    MORE = "more"  # the text is used up, or ends within an event
    END = "end"  # the list of events is closed
    ENOUGH = "enough"  # as many elements as asked for were read


class Between(Enum):
    """Where in the list of events the reader stands, between two elements."""

    START = 0  # after the opening bracket
    AFTER_EVENT = 1  # a comma is due
    AFTER_COMMA = 2  # an event is due


@dataclass
class Stretch:
    """What was read from a stretch of text.

    Attributes:
        events: The events, in order.
        places: Where in the text each begins.
        stop: The first position that was not used.
        between: The state there.
        outcome: Why it stops.
        problems: What was repaired or skipped, with positions in the text as places.
    """

    events: list[Event] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    stop: int = 0
    between: Between = Between.START
    outcome: Outcome = Outcome.MORE
    problems: Problems = field(default_factory=Problems)


class _NeedMoreTextError(Exception):
    """The text ends within an event, and more of it may come."""


def clean(text: str) -> str:
    """A string that UTF-8 can hold: each lone surrogate becomes U+FFFD."""
    return _SURROGATE.sub("\ufffd", text)


def _flow_id(value: Any, raw: str) -> int | None:
    """`id` as an unsigned integer: numbers and digits as they are, other words by their hash."""
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
    """A name: a string as it is, nothing for null, anything else as its text."""
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


def _identifier(value: Any, problems: Problems, place: int) -> int | None:
    if type(value) is not int or value < 0:
        return None
    if value > UINT64_MAX:
        problems.add("identifier_out_of_range", place)
        return None
    return value


def _number(value: Any) -> int | None:
    return value if type(value) is int and abs(value) <= INT64_MAX else None


def _event(
    fields: dict[str, tuple[Any, str]], args: Any, args_text: str | None,
    problems: Problems, place: int,
) -> Event:  # fmt: skip
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
        correlation=_identifier(arguments.get("correlation"), problems, place),
        external_id=_identifier(external, problems, place),
        device=_number(arguments.get("device")),
        stream=_number(arguments.get("stream")),
        bytes=_number(arguments.get("bytes")),
        args=args_text,
    )


def standard_text(value: Any) -> str:
    """JSON that every parser accepts, of a value that Python's or the lenient parser read."""
    return clean(json.dumps(_standard(value), ensure_ascii=False))


def _standard(value: Any) -> Any:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):  # noqa: PLR0124
        return str(value)
    if isinstance(value, dict):
        return {clean(str(key)): _standard(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_standard(item) for item in value]
    return clean(value) if isinstance(value, str) else value


def _kept_args(value: Any, raw: str, problems: Problems, place: int) -> str | None:
    """The text of the arguments as the file has it, or one with the same meaning that is valid."""
    if value is None:
        return None
    if _SURROGATE.search(raw) or _ESCAPED_SURROGATE.search(raw):
        try:
            orjson.loads(raw)
        except (orjson.JSONDecodeError, UnicodeEncodeError):
            problems.add("invalid_utf8", place)
            return standard_text(value)
    return raw


def _read_members(text: str, at: int, problems: Problems) -> tuple[Event, int]:
    """Reads the object that begins at `at`, by the standard.

    Raises:
        ValueError: It is not valid (`json.JSONDecodeError` with its position, where known).
        StopIteration: The text ends (raised by the parser), its value is the position.
    """
    place = at
    here = at + 1
    fields: dict[str, tuple[Any, str]] = {}
    args: Any = None
    args_text: str | None = None
    extra = False
    while True:
        plain = _PLAIN_MEMBER.match(text, here)
        if plain is not None:
            key, word, digits, closing = plain.groups()
            # A number stays text: its value is only needed where it is read from the digits.
            fields[key] = (word, word) if digits is None else (0, digits)
            here = plain.end()
        else:
            opening = _ARGS.match(text, here)
            if opening is not None:
                key, start = "args", opening.end()
            else:
                start = _SPACE.match(text, here).end()  # type: ignore[union-attr]
                if text.startswith("}", start) and not fields and args_text is None:
                    return _event(fields, args, args_text, problems, place), start + 1
                if not text.startswith('"', start):
                    raise json.JSONDecodeError("Expecting a key", text, start)
                key, start = strict_value(text, start)
                start = _SPACE.match(text, start).end()  # type: ignore[union-attr]
                if not text.startswith(":", start):
                    raise json.JSONDecodeError("Expecting ':'", text, start)
                start = _SPACE.match(text, start + 1).end()  # type: ignore[union-attr]
            value, here = strict_value(text, start)
            delimiter = _AFTER_VALUE.match(text, here)
            if delimiter is None:
                raise json.JSONDecodeError("Expecting ',' or '}'", text, here)
            if key == "args":
                args = value
                args_text = _kept_args(value, text[start:here], problems, place)
            elif key in KEPT_KEYS:
                fields[key] = (value, text[start:here])
                if isinstance(value, str) and _SURROGATE.search(value):
                    problems.add("invalid_utf8", place)
            else:
                extra = True
            closing = delimiter.group(1)
            here = delimiter.end()
        if closing == "}":
            if extra:
                problems.add("extra_keys", place)
            return _event(fields, args, args_text, problems, place), here


def _is_for_want_of_text(error: Exception, text: str) -> bool:
    if isinstance(error, StopIteration):
        position = error.value
    elif isinstance(error, json.JSONDecodeError):
        if error.msg.startswith("Unterminated string"):
            return True
        position = error.pos
    else:
        return False
    return isinstance(position, int) and position > len(text.rstrip()) - _NEVER_CUT


def _read_strictly(text: str, at: int, final: bool, problems: Problems) -> tuple[Event, int] | None:
    """The event at `at` and the position after it; None where it is not valid JSON."""
    found = Problems()
    try:
        event, end = _read_members(text, at, found)
    except (ValueError, StopIteration, RecursionError) as error:
        if not final and len(text) - at < LONGEST_EVENT and _is_for_want_of_text(error, text):
            raise _NeedMoreTextError from None
        return None
    problems.merge(found)
    return event, end


def _event_of_object(value: dict[str, Any], problems: Problems, place: int) -> Event:
    """The event of an object that the lenient parser read."""
    fields: dict[str, tuple[Any, str]] = {}
    for key, item in value.items():
        if key in KEPT_KEYS and key != "args":
            fields[key] = (item, item if isinstance(item, str) else standard_text(item))
    args = value.get("args")
    text = None if args is None else standard_text(args)
    if any(key not in KEPT_KEYS for key in value):
        problems.add("extra_keys", place)
    return _event(fields, args, text, problems, place)


def _read_leniently(
    text: str, at: int, final: bool, problems: Problems
) -> tuple[Event, int] | None:
    """As `_read_strictly`, but of what was only meant as JSON."""
    can_wait = not final and len(text) - at < LONGEST_EVENT
    try:
        value, end = read_lenient(text, at, not can_wait)
    except LenientError as error:
        if error.at_end and can_wait:
            raise _NeedMoreTextError from None
        return None
    following = _SPACE.match(text, end).end()  # type: ignore[union-attr]
    if following >= len(text):
        if can_wait:
            raise _NeedMoreTextError
    elif text[following] not in ",]":
        return None
    if not isinstance(value, dict) or not isinstance(value.get("ph"), str):
        return None
    problems.add("invalid_utf8" if _SURROGATE.search(text, at, end) else "invalid_json", at)
    return _event_of_object(value, problems, at), end


def _salvage(text: str, problems: Problems, place: int) -> Event | None:
    """What can be recognised in the text of one broken event."""
    fields: dict[str, tuple[Any, str]] = {}
    for key, pattern in _SALVAGED.items():
        match = pattern.search(text)
        if match is not None:
            word, digits = match.groups()
            fields[key] = (word, word) if digits is None else (0, digits)
    if "ph" not in fields or "ts" not in fields or "name" not in fields:
        return None
    kept = standard_text({"unparsed": text})
    return _event(fields, None, kept, problems, place)


def _resynchronise(text: str, at: int, final: bool, stretch: Stretch) -> int:
    """Gets past what cannot be read at `at`: to the next event, or to the end of the list."""
    can_wait = not final and len(text) - at < LONGEST_EVENT
    following: int | None = None
    candidate = _CANDIDATE.search(text, at + 1)
    failures = 0
    while candidate is not None:
        start = candidate.start()
        found = _read_strictly(text, start, not can_wait, Problems()) or _read_leniently(
            text, start, not can_wait, Problems()
        )
        if found is not None and found[0].phase is not None:
            following = start
            break
        failures += 1
        stride = 1 if failures <= _PATIENCE else failures * 16  # else a hostile file costs n²
        candidate = _CANDIDATE.search(text, start + stride)
    if following is None:
        if can_wait:
            raise _NeedMoreTextError
        end = _LIST_END.search(text, at)
        if end is None and final:
            stretch.problems.add("truncated", at)
            return len(text)
        following = len(text) if end is None else end.start(1)
    lost = text[at:following].rstrip(", \t\r\n")
    event = _salvage(lost, stretch.problems, at)
    if event is None:
        stretch.problems.add("skipped", at)
    else:
        stretch.problems.add("salvaged", at)
        stretch.events.append(event)
        stretch.places.append(at)
    stretch.between = Between.AFTER_COMMA
    if following < len(text) and text[following] == "]":
        stretch.between = Between.AFTER_EVENT
    return following


def _skip_element(text: str, at: int, final: bool, stretch: Stretch) -> int | None:
    """Gets past an element that is valid JSON but no object; None where it is not valid."""
    try:
        _, end = strict_value(text, at)
    except (ValueError, StopIteration, RecursionError) as error:
        if not final and len(text) - at < LONGEST_EVENT and _is_for_want_of_text(error, text):
            raise _NeedMoreTextError from None
        return None
    if end >= len(text) and not final:
        raise _NeedMoreTextError  # a number might go on
    stretch.problems.add("not_an_event", at)
    return int(end)


def _read_element(text: str, at: int, final: bool, stretch: Stretch) -> int:
    """Reads or gets past the element that begins at `at`; returns the position after it."""
    if text[at] != "{":
        end = _skip_element(text, at, final, stretch)
        if end is not None:
            stretch.between = Between.AFTER_EVENT
            return end
        return _resynchronise(text, at, final, stretch)
    found = _read_strictly(text, at, final, stretch.problems)
    if found is None:
        found = _read_leniently(text, at, final, stretch.problems)
    if found is None:
        return _resynchronise(text, at, final, stretch)
    event, end = found
    stretch.events.append(event)
    stretch.places.append(at)
    stretch.between = Between.AFTER_EVENT
    return end


def read_stretch(
    text: str, at: int, between: Between, final: bool, most: int | None = None
) -> Stretch:
    """Reads events from the inside of a list of events.

    Args:
        text: A stretch of the file; bytes that are not UTF-8 as lone surrogates
            (`errors="surrogateescape"`).
        at: Where to begin.
        between: The state there.
        final: No more text will come.
        most: Stop after so many elements; None: no limit.

    Returns:
        What was read. It does not depend on how the file is cut into stretches, as long as the
        caller goes on at `stop` with more text.
    """
    stretch = Stretch(stop=at, between=between)
    elements = 0
    here = at
    while most is None or elements < most:
        here = _SPACE.match(text, here).end()  # type: ignore[union-attr]
        stretch.stop = here
        if here >= len(text):
            return stretch
        character = text[here]
        if character == "]":
            if stretch.between is Between.AFTER_COMMA:
                stretch.problems.add("stray_comma", here)
            stretch.stop = here + 1
            stretch.outcome = Outcome.END
            return stretch
        if character == ",":
            if stretch.between is not Between.AFTER_EVENT:
                stretch.problems.add("stray_comma", here)
            stretch.between = Between.AFTER_COMMA
            here += 1
            stretch.stop = here
            continue
        if stretch.between is Between.AFTER_EVENT:
            # Reported once the element is certain, so that a retry with more text counts it once.
            comma_missing = Problems()
            comma_missing.add("stray_comma", here)
        else:
            comma_missing = Problems()
        try:
            here = _read_element(text, here, final, stretch)
        except _NeedMoreTextError:
            return stretch
        stretch.problems.merge(comma_missing)
        stretch.stop = here
        elements += 1
    stretch.outcome = Outcome.ENOUGH
    return stretch
