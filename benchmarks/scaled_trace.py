"""Larger files from a real trace: consecutive copies of its events, as one longer training has.

Each copy has its own times, correlations, identifiers of events and flows, and step numbers; names,
shapes, arguments and Python frames are those of the source. `write_scaled` writes minified JSON,
`write_as_written` keeps the layout of the source. One copy at a time is in memory.

    python benchmarks/scaled_trace.py SOURCE TARGET LEAST_BYTES     # as written
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

STEP = "ProfilerStep#"
LINKS = ("correlation", "External id")
_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_SHIFTED = re.compile(
    rb'("ts"\s*:\s*"?|"(?:correlation|[Ee]xternal id|id)"\s*:\s*|"ProfilerStep#)(\d+)'
)


def write_scaled(path: Path, source: Path, is_enough: Callable[[int, int], bool]) -> None:
    """Write a trace of some size.

    Args:
        path: Where to write it, uncompressed.
        source: A Chrome trace (.json or .json.gz).
        is_enough: Whether so many bytes, and so many events with a duration, are enough. There is
            always one copy.
    """
    document = orjson.loads(_content_of(source))
    events = document.pop("traceEvents")
    timed = [event for event in events if "ts" in event]
    others = [event for event in events if "ts" not in event]
    first = min(float(event["ts"]) for event in timed)
    span = max(float(event["ts"]) + float(event.get("dur", 0)) for event in timed) - first + 1000
    durations = sum(event.get("ph") == "X" for event in timed)
    links = 1 + max(_links_of(event) for event in timed)
    steps = 1 + max(_step_of(event) or 0 for event in timed)
    with path.open("wb") as target:
        head = orjson.dumps(document)[:-1]
        target.write(head + (b"," if document else b"") + b'"traceEvents":[\n')
        written = target.write(b",\n".join(map(orjson.dumps, others)))
        copies = 0
        while not copies or not is_enough(written, copies * durations):
            shifted = (_shifted(event, copies, span, links, steps) for event in timed)
            lines = b",\n".join(map(orjson.dumps, shifted))
            written += target.write((b",\n" if copies or others else b"") + lines)
            copies += 1
        target.write(b"\n]}")


def write_as_written(path: Path, source: Path, least_bytes: int) -> None:
    """Write a trace of some size in the layout of its source: only numbers are changed.

    Args:
        path: Where to write it, uncompressed.
        source: A Chrome trace (.json or .json.gz), an object with `traceEvents`.
        least_bytes: How large it is at least. There is always one copy.
    """
    content = _content_of(source)
    opening = _LIST.search(content)
    if opening is None:
        raise ValueError(f"{source}: has no list of events")
    start = opening.end()
    text = content[start - 1 :].decode("utf-8", "surrogateescape")
    _, length = json.JSONDecoder(strict=False).raw_decode(text)
    end = start - 1 + len(text[: length - 1].encode("utf-8", "surrogateescape"))
    del text
    events = content[start:end].rstrip()
    largest = {b"t": 0, b"i": 0, b"P": 0}
    smallest = 1 << 62
    for found in _SHIFTED.finditer(events):
        kind, number = _kind_of(found), int(found[2])
        largest[kind] = max(largest[kind], number)
        smallest = min(smallest, number) if kind == b"t" else smallest
    steps = {
        b"t": largest[b"t"] - smallest + 1000,
        b"i": largest[b"i"] + 1,
        b"P": largest[b"P"] + 1,
    }
    with path.open("wb") as target:
        written = target.write(content[:start])
        copy = 0
        while not copy or written < least_bytes:

            def moved(found: re.Match[bytes], copy: int = copy) -> bytes:
                number = int(found[2])
                kind = _kind_of(found)
                is_none = number == 0 and kind == b"i"
                return found[1] + str(number + (0 if is_none else copy * steps[kind])).encode()

            text_of_copy = _SHIFTED.sub(moved, events) if copy else events
            written += target.write((b"," if copy else b"") + text_of_copy)
            copy += 1
        target.write(content[end:])


def _kind_of(found: re.Match[bytes]) -> bytes:
    """Whether a number is a time (t), the number of a step (P) or another identifier (i)."""
    first = found[1][1:2]
    return first if first in (b"t", b"P") else b"i"


def _content_of(source: Path) -> bytes:
    content = source.read_bytes()
    return gzip.decompress(content) if source.suffix == ".gz" else content


def _links_of(event: dict[str, Any]) -> int:
    args = event.get("args")
    found = [args.get(name) for name in LINKS] if isinstance(args, dict) else []
    return max((link for link in (*found, event.get("id")) if isinstance(link, int)), default=0)


def _step_of(event: dict[str, Any]) -> int | None:
    name = event.get("name", "")
    number = name.removeprefix(STEP)
    return int(number) if name != number and number.isdigit() else None


def _shifted(
    event: dict[str, Any], copy: int, span: float, links: int, steps: int
) -> dict[str, Any]:
    new = {**event, "ts": round(float(event["ts"]) + copy * span, 3)}
    args = event.get("args")
    if isinstance(args, dict):
        moved = {name: args[name] + copy * links for name in LINKS if _is_number(args.get(name))}
        new["args"] = {**args, **moved}
    if _is_number(event.get("id")):
        new["id"] = event["id"] + copy * links
    step = _step_of(event)
    if step is not None:
        new["name"] = f"{STEP}{step + copy * steps}"
    return new


def _is_number(link: object) -> bool:
    return isinstance(link, int) and link > 0  # 0 stands for none


if __name__ == "__main__":
    write_as_written(Path(sys.argv[2]), Path(sys.argv[1]), int(sys.argv[3]))
