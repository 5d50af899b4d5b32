"""Streams whose encoding lacks characters that Stepscope prints, such as a pipe on Windows.

They get what comes closest: `#` for a bar, `us` for microseconds. What has no such stand-in, as in
a name from a file, is escaped.
"""

from __future__ import annotations

import codecs
import contextlib
from typing import TextIO

_STAND_INS = {
    "█": "#", "▉": "#", "▊": "#", "▋": "#", "▌": "|", "▍": "|", "▎": "|", "▏": "|",
    "─": "-", "━": "-", "│": "|", "┼": "+", "…": "...", "·": "-", "•": "*", "×": "x", "–": "-",
    "—": "-", "−": "-", "µ": "u", "→": "->", "°": " ", "±": "+-", "²": "^2", "›": ">",
    "✓": "ok", "≥": ">=", "≤": "<=",
}  # fmt: skip
_HANDLER = "stepscope-stand-ins"


def tolerate_narrow_encoding(stream: TextIO) -> None:
    """Have a stream replace what its encoding lacks, instead of failing."""
    codecs.register_error(_HANDLER, _replaced)
    with contextlib.suppress(AttributeError, ValueError, OSError):
        stream.reconfigure(errors=_HANDLER)  # type: ignore[attr-defined]


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(_STAND_INS.get(c) or _escaped(c) for c in text), error.end


def _escaped(character: str) -> str:
    return character.encode("ascii", "backslashreplace").decode()
