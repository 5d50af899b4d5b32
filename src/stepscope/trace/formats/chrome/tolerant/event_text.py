"""Reads the list of events of a Chrome trace from its text, tolerantly, one event at a time.

This reader knows every layout, and reports what is wrong. It also reads every event that the
compiled scanner does not recognise.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from stepscope.trace.formats.chrome.rows import Between, Event
from stepscope.trace.formats.chrome.tolerant.event_fields import (
    DRAWN_KEYS,
    KEPT_KEYS,
    event_of,
    kept_args,
    salvaged_event,
)
from stepscope.trace.formats.chrome.tolerant.json_text import (
    SURROGATE,
    after_space,
    is_cut_short,
    may_go_on,
    strict_value,
)
from stepscope.trace.formats.chrome.tolerant.lenient_json import LenientError, repaired
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

_CANDIDATE = re.compile(r'\{\s*"(?:ph|cat|name|pid|tid|ts|dur|id|args|s|bp)"\s*:')
_LIST_END = re.compile(r'\}\s*(\]\s*(?:\}|,\s*"[^"\n]{1,200}"\s*:|$))')
_PATIENCE = 64
MOST_FRUITLESS = 200_000
"""Elements and stray commas in a row without an event, after which the list is given up."""


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
        standard, end = repaired(text, at, not can_wait)
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


class Outcome(Enum):
    """Why reading a stretch of text stopped."""

    MORE = "more"  # the text is used up or ends within an event
    END = "end"  # the list of events is closed
    ENOUGH = "enough"  # the requested number of elements was read
    GIVEN_UP = "given up"  # more than `MOST_FRUITLESS` in a row were no events


@dataclass
class Stretch:
    """The result of reading a stretch of text.

    Attributes:
        positions: Start of each event in the text.
        stop: The first unused position.
        between: The state at that position.
        problems: What was repaired or skipped, with positions in the text.
        fruitless: Elements and stray commas since the last event with a phase.
    """

    events: list[Event] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    stop: int = 0
    between: Between = Between.START
    outcome: Outcome = Outcome.MORE
    problems: Problems = field(default_factory=Problems)
    fruitless: int = 0


def read_stretch(
    text: str,
    at: int,
    between: Between,
    final: bool,
    most: int | None = None,
    fruitless: int = 0,
) -> Stretch:
    """Reads events from within a list of events.

    Args:
        text: Part of the file, with bytes that are not UTF-8 as lone surrogates
            (`errors="surrogateescape"`).
        final: Whether no more text follows.
        most: Maximum number of elements; None for no limit.
        fruitless: Elements and stray commas since the last event, before this stretch.

    Returns:
        The events. They do not depend on how the file is split, as long as the caller continues at
        `stop` with more text.
    """
    stretch = Stretch(stop=at, between=between, fruitless=fruitless)
    elements = 0
    here = at
    while most is None or elements < most:
        here = after_space(text, here)
        stretch.stop = here
        if stretch.fruitless > MOST_FRUITLESS:
            stretch.outcome = Outcome.GIVEN_UP
            return stretch
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
                stretch.fruitless += 1
            stretch.between = Between.AFTER_COMMA
            here += 1
            stretch.stop = here
            continue
        start, comma_is_missing = here, stretch.between is Between.AFTER_EVENT
        known = len(stretch.events)
        try:
            here = _read_element(text, start, final, stretch)
        except NeedMoreTextError:
            return stretch
        is_event = len(stretch.events) > known and stretch.events[-1].phase is not None
        # Only now, so that a retry does not count it twice.
        if comma_is_missing:
            stretch.problems.add("stray_comma", start)
        stretch.stop = here
        elements += 1
        stretch.fruitless = 0 if is_event else stretch.fruitless + 1
    stretch.outcome = Outcome.ENOUGH
    return stretch


def _read_element(text: str, at: int, final: bool, stretch: Stretch) -> int:
    """Reads or skips the element at `at`, and returns the position after it."""
    if text[at] != "{":
        end = _skip_element(text, at, final, stretch)
        if end is not None:
            stretch.between = Between.AFTER_EVENT
            return end
        return _resynchronise(text, at, final, stretch)
    found = read_strictly(text, at, final, stretch.problems)
    if found is None:
        found = read_leniently(text, at, final, stretch.problems)
    if found is None:
        return _resynchronise(text, at, final, stretch)
    event, end = found
    stretch.events.append(event)
    stretch.positions.append(at)
    stretch.between = Between.AFTER_EVENT
    return end


def _skip_element(text: str, at: int, final: bool, stretch: Stretch) -> int | None:
    """Skips an element that is valid JSON but not an object; None if it is invalid."""
    try:
        _, end = strict_value(text, at)
    except (ValueError, StopIteration, RecursionError) as error:
        if not final and len(text) - at < LONGEST_EVENT and is_cut_short(error, text):
            raise NeedMoreTextError from None
        return None
    if may_go_on(text, end) and not final:
        raise NeedMoreTextError
    stretch.problems.add("not_an_event", at)
    return int(end)


def _resynchronise(text: str, at: int, final: bool, stretch: Stretch) -> int:
    """Skips unreadable text, up to the next event or the end of the list."""
    can_wait = not final and len(text) - at < LONGEST_EVENT
    following: int | None = None
    candidate = _next_candidate(text, at + 1)
    failures = 0
    while candidate is not None:
        start = candidate.start()
        found = read_strictly(text, start, not can_wait, Problems()) or read_leniently(
            text, start, not can_wait, Problems()
        )
        if found is not None and found[0].phase is not None:
            following = start
            break
        failures += 1
        # Growing steps keep hostile files from taking quadratic time.
        stride = 1 if failures <= _PATIENCE else failures * 16
        candidate = _next_candidate(text, start + stride)
    if following is None:
        if can_wait:
            raise NeedMoreTextError
        end = _LIST_END.search(text, at)
        if end is None and final:
            stretch.problems.add("truncated", at)
            return len(text)
        following = len(text) if end is None else end.start(1)
    lost = text[at:following].rstrip(", \t\r\n")
    event = salvaged_event(lost, stretch.problems, at)
    if event is None:
        stretch.problems.add("skipped", at)
    else:
        stretch.problems.add("salvaged", at)
        stretch.events.append(event)
        stretch.positions.append(at)
    stretch.between = Between.AFTER_COMMA
    if following < len(text) and text[following] == "]":
        stretch.between = Between.AFTER_EVENT
    return following


def _next_candidate(text: str, at: int) -> re.Match[str] | None:
    """What looks like the beginning of an event, from `at` on.

    Nothing before the last brace ahead of a quote can be one. Megabytes of braces are skipped so.
    """
    quote = text.find('"', at)
    if quote < 0:
        return None
    return _CANDIDATE.search(text, max(at, text.rfind("{", at, quote)))
