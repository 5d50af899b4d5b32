"""Larger files from a real trace: consecutive copies of its events, as one longer training has.

Each copy has its own times, correlations, identifiers of events and flows, and step numbers; names,
shapes, arguments and Python frames are those of the source. One copy at a time is in memory.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

STEP = "ProfilerStep#"
LINKS = ("correlation", "External id")


def write_scaled(path: Path, source: Path, is_enough: Callable[[int, int], bool]) -> None:
    """Write a trace of some size.

    Args:
        path: Where to write it, uncompressed.
        source: A Chrome trace (.json or .json.gz).
        is_enough: Whether so many bytes, and so many events with a duration, are enough. There is
            always one copy.
    """
    content = source.read_bytes()
    document = orjson.loads(gzip.decompress(content) if source.suffix == ".gz" else content)
    del content
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
