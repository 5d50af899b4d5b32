"""Parts of real traces as their recorders wrote them, small enough to be damaged often."""

from __future__ import annotations

import gzip
import json
import re

from tests.support.real_traces import NAMES, ROOT

_OPENING = re.compile(r'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(r"\}\s*,\s*(?=\{\s*\"(?:ph|name|cat)\")")
_WHITE = re.compile(r"[\s,]*")


def excerpts(events: int = 40) -> list[bytes]:
    """For each real trace at hand, what comes before its events, and two of their parts.

    Args:
        events: Number of events in each part.
    """
    found = []
    for name in NAMES:
        path = ROOT / name
        if path.exists():
            found.append(excerpt(gzip.decompress(path.read_bytes()).decode(), events))
    return found


def excerpt(text: str, events: int) -> bytes:
    """The opening of a trace's text with events of its beginning and of its middle."""
    opening = _OPENING.search(text)
    if opening is None:
        raise ValueError("no events")
    head = text[: opening.end()] if opening.end() < 20_000 else '{"traceEvents": ['
    middle = _BETWEEN.search(text, (opening.end() + len(text)) // 2)
    starts = [opening.end(), *([middle.end()] if middle is not None else [])]
    parts = [_events_from(text, start, events) for start in starts]
    return f"{head}{','.join(part for part in parts if part.strip())}]}}".encode()


def _events_from(text: str, start: int, most: int) -> str:
    """The text of so many events from a place on, and what lies between them."""
    decoder = json.JSONDecoder()
    at = end = start
    for _ in range(most):
        white = _WHITE.match(text, at)
        at = white.end() if white is not None else at
        if text[at : at + 1] != "{":
            break
        _, at = decoder.raw_decode(text, at)
        end = at
    return text[start:end]
