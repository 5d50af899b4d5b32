"""Writes Chrome traces in every layout that recorders and their users have produced."""

from __future__ import annotations

import dataclasses
import io
import json
from typing import Any

from polars.testing import assert_frame_equal

from stepscope.trace.formats.chrome.event_list import read_events_tolerantly
from stepscope.trace.formats.chrome.reader import read_tables
from stepscope.trace.problems import Problems
from stepscope.trace.source.content import Content
from stepscope.trace.tables import Tables

HEADER = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "NVIDIA H100", "totalGlobalMem": 85018279936}],
    "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2},
    "displayTimeUnit": "ms",
    "baseTimeNanoseconds": 1751410836000000000,
}
FOREIGN = {"metadata": {"errors": {}, "list": [{"name": "x", "ph": "X"}], "text": '},{"ph":"X"'}}


class Digits(str):
    """A number to be written exactly so."""

    __slots__ = ()


def dump(value: Any, **options: Any) -> str:
    """As json.dumps, with `Digits` written as numbers."""
    if isinstance(value, Digits):
        return str(value)
    if isinstance(value, dict):
        separator, colon = options.get("separators", (", ", ": "))
        body = separator.join(
            f"{json.dumps(k)}{colon}{dump(v, **options)}" for k, v in value.items()
        )
        return "{" + body + "}"
    return json.dumps(value, ensure_ascii=options.get("ensure_ascii", True))


def _event(event: dict[str, Any], layout: str) -> str:
    args = event.get("args")
    if args is not None and not isinstance(args, dict):
        return dump(event)
    plain = [(k, v) for k, v in event.items() if k != "args"]
    if layout == "kineto-2026":
        lines = [f'    "{key}": {dump(value, ensure_ascii=False)}' for key, value in plain]
        text = "  {\n" + ",\n".join(lines) + "\n    "
        if args is not None:
            inside = ", ".join(f"{json.dumps(k)}: {dump(v)}" for k, v in args.items())
            text += ',\n    "args": {\n      ' + inside + "\n    }"
        return text + "\n  }"
    if layout in ("kineto-2024", "kineto-2022"):
        head = [f'"{k}": {dump(v)}' for k, v in plain if k not in ("ts", "dur")]
        times = [f'"{k}": {dump(v)}' for k, v in plain if k in ("ts", "dur")]
        lines = ["    " + ", ".join(part) for part in (head, times) if part]
        if args is not None:
            separator = ",\n      " if layout == "kineto-2022" else ", "
            inside = separator.join(f"{json.dumps(k)}: {dump(v)}" for k, v in args.items())
            lines.append('    "args": {\n      ' + inside + "\n    }")
        return "  {\n" + ",\n".join(lines) + "\n  }"
    if layout == "minified":
        return dump(event, separators=(",", ":"))
    if layout == "spaced":
        return dump(event)
    width = int(layout.removeprefix("indent-"))
    inside = (",\n" + " " * 2 * width).join(f'"{k}": {dump(v)}' for k, v in event.items())
    return f"{' ' * width}{{\n{' ' * 2 * width}{inside}\n{' ' * width}}}"


LAYOUTS = (
    "kineto-2026", "kineto-2024", "kineto-2022", "minified", "spaced",
    "indent-1", "indent-2", "indent-4",
)  # fmt: skip
FRAMES = ("header-before", "header-after", "bare-array", "foreign-header")


def write(
    events: list[dict[str, Any]], layout: str = "kineto-2024", frame: str = "header-before"
) -> bytes:
    """A trace file's bytes."""
    separator = "," if layout == "minified" else ",\n"
    body = separator.join(_event(event, layout) for event in events)
    listed = f"[{body}]" if layout == "minified" else f"[\n{body}\n  ]"
    header = json.dumps(HEADER)[1:-1]
    foreign = json.dumps(FOREIGN)[1:-1]
    text = {
        "header-before": f'{{\n{header},\n  "traceEvents": {listed},"traceName": "t"}}',
        "header-after": f'{{"traceEvents": {listed},\n{header}\n}}\n',
        "bare-array": listed,
        "foreign-header": f'{{{foreign}, {header}, "traceEvents":{listed}, "tail": [{{"a": 1}}]}}',
    }[frame]
    return text.encode("utf-8", "surrogatepass")


def pieces(data: bytes, size: int) -> Content:
    """A file that is read in blocks."""
    stream = io.BytesIO(data)
    return Content(iter(lambda: stream.read(size), b""), size)


def read_tolerantly(data: bytes, block: int = 1 << 22) -> Tables:
    """What the complete reader makes of some bytes."""
    problems = Problems()
    return read_tables("test", pieces(data, block), problems, read_events_tolerantly)


def read_compiled(data: bytes, block: int = 1 << 22) -> Tables:
    """What the compiled scanner with its fall-back makes of some bytes."""
    from stepscope.trace.formats.chrome.scan import read_events_compiled

    problems = Problems()
    return read_tables("test", pieces(data, block), problems, read_events_compiled)


def assert_same_tables(left: Tables, right: Tables) -> None:
    """Every table, row for row and column for column."""
    for field in dataclasses.fields(Tables):
        first, second = getattr(left, field.name), getattr(right, field.name)
        assert_frame_equal(first, second, check_exact=True)


def kernel(start: str = "10.5", dur: str = "2", **more: Any) -> dict[str, Any]:
    """A kernel event with the usual arguments."""
    event = {
        "ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7,
        "ts": Digits(start), "dur": Digits(dur),
        "args": {"External id": 3, "device": 0, "stream": 7, "correlation": 11},
    }  # fmt: skip
    return event | more


def operator(
    name: str = "aten::mm", start: str = "1.001", dur: str = "5.25", **more: Any
) -> dict[str, Any]:
    """An operator on the host."""
    event = {
        "ph": "X", "cat": "cpu_op", "name": name, "pid": 100, "tid": 100,
        "ts": Digits(start), "dur": Digits(dur), "args": {"External id": 3, "Ev Idx": 0},
    }  # fmt: skip
    return event | more
