"""Reads the list of events of a Chrome trace from its text, tolerantly, one event at a time.

This reader knows every layout, and repairs and reports what it can. It also reads every event that
the compiled scanner does not recognise.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum

from stepscope.trace.formats.chrome.rows import Event
from stepscope.trace.formats.chrome.tolerant.event_fields import salvaged_event
from stepscope.trace.formats.chrome.tolerant.event_json import (
    LONGEST_EVENT,
    NeedMoreTextError,
    read_leniently,
    read_strictly,
)
from stepscope.trace.formats.chrome.tolerant.json_text import (
    after_space,
    is_cut_short,
    may_go_on,
    strict_value,
)
from stepscope.trace.problems import Problems

_CANDIDATE = re.compile(r'\{\s*"(?:ph|cat|name|pid|tid|ts|dur|id|args|s|bp)"\s*:')
_LIST_END = re.compile(r'\}\s*(\]\s*(?:\}|,\s*"[^"\n]{1,200}"\s*:|$))')
_PATIENCE = 64
MOST_FRUITLESS = 200_000
"""Elements and stray commas in a row without an event, after which the list is given up."""


class Outcome(Enum):
    """Why reading a stretch of text stopped."""

    MORE = "more"  # the text is used up or ends within an event
    END = "end"  # the list of events is closed
    ENOUGH = "enough"  # the requested number of elements was read
    GIVEN_UP = "given up"  # more than `MOST_FRUITLESS` in a row were no events


class Between(Enum):
    """State of the reader between two elements of the list."""

    START = 0  # after the opening bracket
    AFTER_EVENT = 1  # expects a comma
    AFTER_COMMA = 2  # expects an event


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
