"""Traces of shapes that no recorder writes, in which naive loops take the square of the events."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

Event = dict[str, object]
_KINDS = ("kernel", "cuda_runtime", "cpu_op")


def host(category: str, name: str, at: int, dur: int, thread: int = 1, **args: object) -> Event:
    """An event of a host thread, in microseconds."""
    return {
        "ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "ts": at, "dur": dur,
        "args": args,
    }  # fmt: skip


def work(
    number: int,
    at: int,
    dur: int = 3,
    *,
    correlation: int | None = None,
    thread: int = 1,
    stream: int = 7,
) -> Event:
    """By turns an operator, a launch in it and the kernel that it launches."""
    same = number // 3 if correlation is None else correlation
    kind = _KINDS[number % 3]
    if kind == "kernel":
        event = host(kind, "k", at, dur, stream, correlation=same, device=0, stream=stream)
        return {**event, "pid": 0}
    if kind == "cuda_runtime":
        return host(kind, "cudaLaunchKernel", at, dur, thread, correlation=same)
    return host(kind, "aten::mm", at, dur, thread, **{"External id": same})


def _steps(count: int) -> list[Event]:
    length = count + 4
    return [
        host("user_annotation", f"ProfilerStep#{step}", step * length, length) for step in range(4)
    ]


def _chain(count: int, category: str, name: str, length: int = 2) -> list[Event]:
    """Events each of which lies in the one before."""
    return [
        host(category, f"{name}{number % 7}", number, length * count - 2 * number)
        for number in range(count)
    ]


def _moments(count: int) -> list[Event]:
    return [
        {
            "ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1,
            "ts": number + 1, "s": "t", "args": {
                "Total Allocated": number, "Bytes": 8 if number % 2 else -8, "Device Id": 0,
                "Device Type": 1, "Addr": number // 2,
            },
        }
        for number in range(count)
    ]  # fmt: skip


SHAPES: dict[str, Callable[[int], list[Event]]] = {
    "one moment": lambda n: [work(i, 1) for i in range(n)],
    "one moment in steps": lambda n: [*_steps(n), *(work(i, 1) for i in range(n))],
    "one moment on one lane": lambda n: [host("cpu_op", f"op{i % 7}", 1, 3) for i in range(n)],
    "no durations": lambda n: [*_steps(4 * n), *(work(i, 4 * i, 0) for i in range(n))],
    "each in the one before": lambda n: _chain(n, "cpu_op", "aten::op"),
    "frames in one another": lambda n: _chain(n, "python_function", "f.py(3): g"),
    "modules in one another": lambda n: [
        host("python_function", f"nn.Module: Linear_{i}", i, 2 * (n - i) + 1) for i in range(n)
    ],
    "a deep stack, then a flat one": lambda n: [
        *_chain(n // 2, "cpu_op", "aten::op"),
        *(host("cpu_op", "aten::mm", 10 * n + 4 * i, 3) for i in range(n // 2)),
    ],
    "work in a deep stack": lambda n: [
        *_chain(n // 2, "cpu_op", "aten::op", 20),
        *(work(i, n + 4 * i) for i in range(n // 2)),
    ],
    "memory in a deep stack": lambda n: [
        *_chain(n // 2, "python_function", "f.py(3): g"),
        *_moments(n // 2),
    ],
    "all in one": lambda n: [
        host("cpu_op", "root", 0, 4 * n),
        *(host("cpu_op", "aten::mm", 4 * i, 3) for i in range(n)),
    ],
    "each across the next": lambda n: [
        *_steps(n),
        *(host("cpu_op", "aten::mm", i, n + 1) for i in range(n)),
    ],
    "a thread for each": lambda n: [
        *_steps(4 * n),
        *(work(i, 4 * i, thread=i // 3 + 2) for i in range(n)),
    ],
    "a stream for each": lambda n: [*_steps(4 * n), *(work(i, 4 * i, stream=i) for i in range(n))],
    "one correlation": lambda n: [
        *_steps(4 * n),
        *(work(i, 4 * i, correlation=7) for i in range(n)),
    ],
    "one flow": lambda n: [
        *(work(i, 4 * i) for i in range(n // 2)),
        *(
            {
                "ph": "sft"[i % 3], "cat": "ac2g", "name": "ac2g", "id": 7, "bp": "e", "pid": 1,
                "tid": 1, "ts": 8 * i,
            }
            for i in range(n // 2)
        ),
    ],
    "one step": lambda n: [
        host("user_annotation", "ProfilerStep#1", 0, 4 * n),
        *(work(i, 4 * i) for i in range(n)),
    ],
    "steps at one moment": lambda n: [
        *(host("user_annotation", f"ProfilerStep#{i}", 1, 3) for i in range(n // 2)),
        *(work(i, 1) for i in range(n // 2)),
    ],
    "a step for each": lambda n: [
        *(host("user_annotation", f"ProfilerStep#{i}", 10 * i, 10) for i in range(n // 2)),
        *(work(i, 10 * i + 1) for i in range(n // 2)),
    ],
    "a name for each": lambda n: [
        *_steps(4 * n),
        *({**work(i, 4 * i), "name": f"n{i}"} for i in range(n)),
    ],
    "waits at one moment": lambda n: [
        host("cuda_runtime", "cudaStreamSynchronize", 1, 3, correlation=i)
        if i % 2
        else work(i // 2 * 3, 1)
        for i in range(n)
    ],
    "begun, then ended": lambda n: [
        {**host("cpu_op", "a", i, 0), "ph": "B" if i < n // 2 else "E"}
        for i in range(n)
    ],
}  # fmt: skip
"""A list of about as many events as asked for."""


def write_shape(path: Path, name: str, count: int) -> Path:
    """Writes a trace of that shape."""
    path.write_text(json.dumps(SHAPES[name](count)))
    return path
