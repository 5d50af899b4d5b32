"""Strict JSON: parsing, and writing text that every parser accepts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np

SPACE = re.compile(r"[ \t\r\n]*")
SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
# Escaped backslashes and pairs are passed over; a surrogate without its other half is captured.
_LONE_ESCAPE = re.compile(
    r"\\\\"
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
_AT_ONCE = 1024 * 1024  # characters; bounds the memory
_NEVER_CUT = 12  # errors this close to the end of the text may be caused by the end
_PIECE = 16 * 1024  # characters; most events are shorter
_REST_OF_NUMBER = re.compile(r"[0-9.eE+-]*\Z")
_NOTHING_MORE = re.compile(r"\s*\Z")


class _UnusualConstantError(ValueError):
    """NaN or infinity, which only Python accepts as JSON."""


def _refuse_constant(word: str) -> Any:
    raise _UnusualConstantError(word)


_scan: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder(
    parse_constant=_refuse_constant
).scan_once  # type: ignore[attr-defined]


def strict_value(text: str, at: int) -> tuple[Any, int]:
    """Parses the JSON value at `at`: the value, and the position after it.

    Python's error counts the lines of all text before it. Where a recorder writes a bad name into
    every event, that would take most of the time, so a short piece is tried first.

    Raises:
        ValueError: It is invalid (`json.JSONDecodeError` if the position is known).
        StopIteration: The text ends. The value is the position.
    """
    if len(text) - at <= _PIECE:
        return _scan(text, at)
    piece = text[at : at + _PIECE]
    try:
        value, end = _scan(piece, 0)
    except json.JSONDecodeError as error:
        if not is_cut_short(error, piece):
            error.pos += at
            raise
    except StopIteration as stop:
        if stop.value < _PIECE - _NEVER_CUT:
            raise StopIteration(at + stop.value) from None
    else:
        if end < _PIECE:  # otherwise a number may go on
            return value, at + end
    return _scan(text, at)


def may_go_on(text: str, end: int) -> bool:
    """Whether more text could continue the value that ends here: a number, as `1` could be `1.5`.

    Python takes the 1 of `1.` for all of it.
    """
    return text[end - 1] not in '}]"' and _REST_OF_NUMBER.match(text, end) is not None


def after_space(text: str, at: int) -> int:
    """Returns the first position from `at` on that is not JSON whitespace."""
    return SPACE.match(text, at).end()  # type: ignore[union-attr]


def member_texts(text: str) -> dict[str, str]:
    """Returns the text of each member's value of a JSON object; nothing for any other value."""
    here = after_space(text, 0)
    found: dict[str, str] = {}
    if not text.startswith("{", here):
        return found
    while True:
        here = after_space(text, here + 1)  # behind the brace, or a comma
        if text.startswith("}", here):
            return found
        key, end = _scan(text, here)
        start = after_space(text, after_space(text, end) + 1)
        _, end = _scan(text, start)
        found[key] = text[start:end]
        here = after_space(text, end)
        if text.startswith("}", here):
            return found


def clean(text: str) -> str:
    """Replaces lone surrogates with U+FFFD, so that the text can be encoded as UTF-8."""
    if text.isascii() or not SURROGATE.search(text):
        return text
    parts = (text[start : start + _AT_ONCE] for start in range(0, len(text), _AT_ONCE))
    return "".join(map(_cleaned, parts))


def without_surrogates(text: str) -> str:
    """Like `clean`, also for escaped surrogates that are no pair. The text is JSON."""
    text = clean(text)
    if not _ESCAPED_SURROGATE.search(text):
        return text
    return _LONE_ESCAPE.sub(lambda found: "\ufffd" if found[1] else found[0], text)


def _cleaned(text: str) -> str:
    """Like `clean`; on an array, because a text of bad bytes alone has millions to replace."""
    points = np.array([text]).view(np.uint32)
    points[(points >= 0xD800) & (points <= 0xDFFF)] = 0xFFFD
    return points.astype("<u4").tobytes().decode("utf-32-le")


def standard_text(value: Any) -> str:
    """Returns standard JSON for a value from Python's or the lenient parser."""
    return clean(json.dumps(_standard(value), ensure_ascii=False))


def _standard(value: Any) -> Any:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):  # noqa: PLR0124
        return str(value)
    if isinstance(value, dict):
        return {clean(str(key)): _standard(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_standard(item) for item in value]
    return clean(value) if isinstance(value, str) else value


def is_cut_short(error: Exception, text: str) -> bool:
    """Whether an error of `strict_value` may be due to the end of the text."""
    if isinstance(error, StopIteration):
        position = error.value
    elif isinstance(error, json.JSONDecodeError):
        if error.msg.startswith("Unterminated string"):
            return True
        position = error.pos
    else:
        return False
    if not isinstance(position, int):
        return False
    return _NOTHING_MORE.match(text, max(0, position + _NEVER_CUT - 1)) is not None
