"""Reads events of the usual form: members with plain words and numbers, and arguments.

Nearly every event of a trace is one. Its members are recognised by one regular expression, which
takes a third of the time of one match for each.
"""

from __future__ import annotations

import re

from stepscope.trace.formats.chrome.rows import Event
from stepscope.trace.formats.chrome.tolerant.event_fields import event_of_words, kept_args
from stepscope.trace.formats.chrome.tolerant.json_text import strict_value
from stepscope.trace.problems import Problems

_SPACE = r"[ \t\r\n]*"
_WORD = r'[^"\\\x00-\x1f\ud800-\udfff]*'
_NUMBER = r"-?(?:0|[1-9][0-9]{0,30})(?:\.[0-9]{1,30})?"
_MEMBERS = re.compile(
    r"(?:"
    + _SPACE
    + '"(?:'
    + "|".join(
        rf'{key}"{_SPACE}:{_SPACE}{value}'
        for key, value in (
            ("ph", f'"({_WORD})"'),
            ("cat", f'"({_WORD})"'),
            ("name", f'"({_WORD})"'),
            ("pid", f'({_NUMBER}|"{_WORD}")'),
            ("tid", f'({_NUMBER}|"{_WORD}")'),
            ("ts", f"({_NUMBER})"),
            ("dur", f"({_NUMBER})"),
            ("id", f"({_NUMBER})"),
            ("(?:s|bp)", f'"{_WORD}"'),
        )
    )
    + ")"
    + _SPACE
    # More than an event has would only take memory.
    + r"(?:,|(?=\}))){0,16}"
    + rf'(?:(?<!,)(\}})|{_SPACE}"args"{_SPACE}:{_SPACE}(?=\{{))'
)
_AFTER_ARGS = re.compile(_SPACE + "([,}])")


def usual_event(text: str, at: int, problems: Problems) -> tuple[Event, int] | None:
    """Returns the event at the brace `at`, and the position after it.

    None for every other form, valid or not; `problems` is then as before.
    """
    first = _MEMBERS.match(text, at + 1)
    if first is None:
        return None
    *words, closing = first.groups()
    if closing is not None:
        return event_of_words(words, {}, None, problems, at), first.end()
    start = first.end()
    try:
        args, end = strict_value(text, start)
    except (ValueError, StopIteration, RecursionError):
        return None
    after = _AFTER_ARGS.match(text, end)
    if after is None:
        return None
    here = after.end()
    if after.group(1) == ",":
        second = _MEMBERS.match(text, here)
        if second is None:
            return None
        *others, closing = second.groups()
        if closing is None:
            return None
        words = [
            word if other is None else other for word, other in zip(words, others, strict=True)
        ]
        here = second.end()
    args_text, is_replaced = kept_args(args, text[start:end])
    if is_replaced:
        problems.add("invalid_utf8", at)
    return event_of_words(words, args, args_text, problems, at), here
