"""Repairs almost-valid JSON: the mistakes that trace recorders are known to make.

Beyond the standard, it accepts control characters inside strings, unescaped quotes and backslashes,
commas before a closing bracket, missing values, and bare words (`N/A`, `nan`, `-inf`), which become
strings. Anything else raises `LenientError`. What needs no repair stays unchanged, digit for digit.
`repair_events.py` does the same for most events in machine code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from stepscope.trace.formats.chrome.tolerant.json_text import after_space, without_surrogates

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?(?=[ \t\r\n,\]}]|$)")
_WORD = re.compile(r"[^\s\"{}\[\],:]{1,64}")
_ESCAPES = frozenset('"\\/bfnrt')
_HEXADECIMAL = re.compile(r"[0-9A-Fa-f]{4}")
_PLAIN = re.compile(r'[^"\\]+')
_CONTROLS = {code: json.dumps(chr(code))[1:-1] for code in range(0x20)}

# What may follow the closing quote of a string, depending on its context.
_AFTER_KEY = re.compile(r'"\s*:')
_AFTER_MEMBER = re.compile(r'"\s*(?:\}|,\s*(?:\}|"[^"\n]{0,200}"\s*:))')
_AFTER_ELEMENT = re.compile(r'"\s*(?:\]|,\s*["\d\-{\[\]tfnN])')

_WORDS = frozenset(("true", "false", "null"))
_MOST_DIGITS = 4000  # longer numbers become strings, as Python refuses them
_DEEPEST = 200
_MOST_STEPS = 200_000  # escapes, values, commas; a larger event is broken, and this bounds the time
_MOST_INNER_QUOTES = 100  # more unescaped quotes mean that it is not a string; also bounds the time


class LenientError(ValueError):
    """The text is not even almost-valid JSON, or ends too early.

    Attributes:
        at_end: Whether more text could make it readable.
    """

    def __init__(self, at_end: bool) -> None:
        super().__init__("ends early" if at_end else "cannot be read")
        self.at_end = at_end


class _Repairer:
    """Reads a text, and writes what it means to `parts`."""

    def __init__(self, text: str, quote_after_backslash_closes: bool) -> None:
        self.text = text
        self.closing_escape = quote_after_backslash_closes
        self.steps = 0
        self.parts: list[str] = []

    def step(self) -> None:
        """Counts an escape, a value or a comma.

        Raises:
            LenientError: There are too many.
        """
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise LenientError(at_end=False)

    def space(self, at: int) -> int:
        end = after_space(self.text, at)
        if end > at:
            self.parts.append(self.text[at:end])
        return end

    def at(self, at: int) -> str:
        if at >= len(self.text):
            raise LenientError(at_end=True)
        return self.text[at]

    def string(self, at: int, closing: re.Pattern[str]) -> int:
        """Repairs the string at `at`. A quote closes it only before a delimiter."""
        text, parts = self.text, self.parts
        parts.append('"')
        here = at + 1
        inner_quotes = 0
        while True:
            plain = _PLAIN.match(text, here)
            here = here if plain is None else plain.end()
            character = self.at(here)
            if plain is not None:  # copied only once it is known to end
                parts.append(plain.group().translate(_CONTROLS))
            if character == '"':
                if closing.match(text, here):
                    parts.append('"')
                    return here + 1
                if here + 1 >= len(text):
                    raise LenientError(at_end=True)
                parts.append('\\"')
                here += 1
                inner_quotes += 1
                if inner_quotes > _MOST_INNER_QUOTES:
                    raise LenientError(at_end=False)
                continue
            self.step()
            following = self.at(here + 1)
            if following == '"' and self.closing_escape and closing.match(text, here + 1):
                parts.append('\\\\"')
                return here + 2
            length = 0
            if following == "u" and _HEXADECIMAL.match(text, here + 2):
                length = 6
            elif following in _ESCAPES:
                length = 2
            parts.append(text[here : here + length] or "\\\\")
            here += length or 1

    def value(self, at: int, closing: re.Pattern[str], depth: int) -> int:
        self.step()
        if depth > _DEEPEST:
            raise LenientError(at_end=False)
        character = self.at(at)
        if character == '"':
            return self.string(at, closing)
        if character == "{":
            return self.members(at, depth)
        if character == "[":
            return self.elements(at, depth)
        number = _NUMBER.match(self.text, at)
        if number is not None:
            digits = number.group()
            self.parts.append(digits if len(digits) <= _MOST_DIGITS else f'"{digits}"')
            return number.end()
        found = _WORD.match(self.text, at)
        if found is None:
            if character in ",}]":
                self.parts.append("null")
                return at
            raise LenientError(at_end=False)
        if found.end() >= len(self.text):
            raise LenientError(at_end=True)
        word = found.group()
        self.parts.append(word if word in _WORDS else json.dumps(word, ensure_ascii=False))
        return found.end()

    def members(self, at: int, depth: int) -> int:
        def member(at: int) -> int:
            if self.at(at) != '"':
                raise LenientError(at_end=False)
            here = self.space(self.string(at, _AFTER_KEY))
            if self.at(here) != ":":
                raise LenientError(at_end=False)
            self.parts.append(":")
            return self.value(self.space(here + 1), _AFTER_MEMBER, depth + 1)

        return self.listed(at, "}", member)

    def elements(self, at: int, depth: int) -> int:
        return self.listed(at, "]", lambda at: self.value(at, _AFTER_ELEMENT, depth + 1))

    def listed(self, at: int, closing: str, item: Callable[[int], int]) -> int:
        """Repairs items with commas between them. Of more commas in a row, one is kept."""
        parts = self.parts
        parts.append(self.text[at])
        here = self.space(at + 1)
        comma = -1  # where one is that no item has followed so far
        is_after_item = False
        while True:
            character = self.at(here)
            if character == closing:
                if comma >= 0:
                    parts[comma] = " "
                parts.append(closing)
                return here + 1
            if character == ",":
                self.step()
                if is_after_item:
                    comma, is_after_item = len(parts), False
                    parts.append(",")
                here = self.space(here + 1)
                continue
            if is_after_item:
                raise LenientError(at_end=False)
            here = self.space(item(here))
            comma, is_after_item = -1, True


def repaired(text: str, at: int, final: bool) -> tuple[str, int]:
    """Repairs the value at `at`.

    Args:
        final: Whether no more text follows.

    Returns:
        The value as standard JSON, and the position after it in the text.

    Raises:
        LenientError: It cannot be repaired. `at_end` tells whether the text ends too early.
    """
    # A string that ends in an unescaped backslash seems to continue.
    repairer = _Repairer(text, quote_after_backslash_closes=True)
    try:
        end = repairer.value(at, _AFTER_MEMBER, 0)
    except LenientError as error:
        if error.at_end and not final:
            raise
        repairer = _Repairer(text, quote_after_backslash_closes=False)
        end = repairer.value(at, _AFTER_MEMBER, 0)
    return without_surrogates("".join(repairer.parts)), end


def read_lenient(text: str, at: int, final: bool) -> tuple[Any, int]:
    """Like `repaired`, but returns the value itself."""
    standard, end = repaired(text, at, final)
    return json.loads(standard), end
