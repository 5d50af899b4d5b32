"""Parses almost-valid JSON, with the mistakes that trace recorders are known to make.

Beyond the standard, it accepts control characters inside strings, unescaped quotes and backslashes,
commas before a closing bracket, missing values, and bare words (`N/A`, `nan`, `-inf`), which become
strings. Anything else raises `LenientError`.
"""

from __future__ import annotations

import re
from typing import Any

from stepscope.trace.formats.chrome.json_text import after_space

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?(?=[ \t\r\n,\]}]|$)")
_WORD = re.compile(r"[^\s\"{}\[\],:]{1,64}")
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_HEXADECIMAL = re.compile(r"[0-9A-Fa-f]{4}")
_PLAIN = re.compile(r'[^"\\]+')

# What may follow the closing quote of a string, depending on its context.
_AFTER_KEY = re.compile(r'"\s*:')
_AFTER_MEMBER = re.compile(r'"\s*(?:\}|,\s*(?:\}|"[^"\n]{0,200}"\s*:))')
_AFTER_ELEMENT = re.compile(r'"\s*(?:\]|,\s*["\d\-{\[\]tfnN])')

_WORDS: dict[str, Any] = {"true": True, "false": False, "null": None}
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


class _Reader:
    def __init__(self, text: str, quote_after_backslash_closes: bool) -> None:
        self.text = text
        self.closing_escape = quote_after_backslash_closes
        self.steps = 0

    def step(self) -> None:
        """Counts an escape, a value or a comma.

        Raises:
            LenientError: There are too many.
        """
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise LenientError(at_end=False)

    def space(self, at: int) -> int:
        return after_space(self.text, at)

    def at(self, at: int) -> str:
        if at >= len(self.text):
            raise LenientError(at_end=True)
        return self.text[at]

    def string(self, at: int, closing: re.Pattern[str]) -> tuple[str, int]:
        """Parses the string at `at`. A quote closes it only before a delimiter."""
        text = self.text
        parts: list[str] = []
        here = at + 1
        inner_quotes = 0
        while True:
            plain = _PLAIN.match(text, here)
            if plain is not None:
                parts.append(plain.group())
                here = plain.end()
            character = self.at(here)
            if character == '"':
                if closing.match(text, here):
                    return "".join(parts), here + 1
                if here + 1 >= len(text):
                    raise LenientError(at_end=True)
                parts.append('"')
                here += 1
                inner_quotes += 1
                if inner_quotes > _MOST_INNER_QUOTES:
                    raise LenientError(at_end=False)
                continue
            self.step()
            following = self.at(here + 1)
            if following == '"' and self.closing_escape and closing.match(text, here + 1):
                parts.append("\\")
                return "".join(parts), here + 2
            if following == "u" and _HEXADECIMAL.match(text, here + 2):
                parts.append(chr(int(text[here + 2 : here + 6], 16)))
                here += 6
            elif following in _ESCAPES:
                parts.append(_ESCAPES[following])
                here += 2
            else:
                parts.append("\\")
                here += 1

    def value(self, at: int, closing: re.Pattern[str], depth: int) -> tuple[Any, int]:
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
            if len(digits) > 4000:
                return digits, number.end()
            return (int(digits) if digits.lstrip("-").isdigit() else float(digits)), number.end()
        word = _WORD.match(self.text, at)
        if word is None:
            if character in ",}]":
                return None, at
            raise LenientError(at_end=False)
        if word.end() >= len(self.text):
            raise LenientError(at_end=True)
        return _WORDS.get(word.group(), word.group()), word.end()

    def members(self, at: int, depth: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        here = self.space(at + 1)
        while True:
            character = self.at(here)
            if character == "}":
                return found, here + 1
            if character == ",":
                self.step()
                here = self.space(here + 1)
                continue
            if character != '"':
                raise LenientError(at_end=False)
            key, here = self.string(here, _AFTER_KEY)
            here = self.space(self.space(here) + 1)
            found[key], here = self.value(here, _AFTER_MEMBER, depth + 1)
            here = self.space(here)
            if self.at(here) not in ",}":
                raise LenientError(at_end=False)

    def elements(self, at: int, depth: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        here = self.space(at + 1)
        while True:
            character = self.at(here)
            if character == "]":
                return found, here + 1
            if character == ",":
                self.step()
                here = self.space(here + 1)
                continue
            value, here = self.value(here, _AFTER_ELEMENT, depth + 1)
            found.append(value)
            here = self.space(here)
            if self.at(here) not in ",]":
                raise LenientError(at_end=False)


def read_lenient(text: str, at: int, final: bool) -> tuple[Any, int]:
    """Parses the value at `at`.

    Args:
        text: Part of the file.
        at: Start of the value.
        final: Whether no more text follows.

    Returns:
        The value, and the position after it.

    Raises:
        LenientError: The value cannot be parsed. `at_end` tells whether the text ends too early.
    """
    try:
        # A string that ends in an unescaped backslash seems to continue.
        return _Reader(text, quote_after_backslash_closes=True).value(at, _AFTER_MEMBER, 0)
    except LenientError as error:
        if error.at_end and not final:
            raise
    return _Reader(text, quote_after_backslash_closes=False).value(at, _AFTER_MEMBER, 0)
