"""Folded stacks for flame graphs: host time and device time by call path.

One line per path: frames from the outermost in, separated by semicolons, then a space and integer
microseconds. The weights are self times, so that the lines of a file add up to the recorded time,
minus what rounds to zero and minus the threads and frames of Stepscope itself.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from stepscope.artifacts.calls import (
    ANNOTATION,
    OPERATOR,
    PYTHON,
    RUNTIME,
    Call,
    WindowCalls,
    nested,
)
from stepscope.artifacts.compress import ArtifactError, make_file
from stepscope.artifacts.job import FinishJob
from stepscope.run.layout import STACKS_FILE
from stepscope.run.manifest import ArtifactRecord
from stepscope.run.own_frames import CALLED, OWN_FILE, PASSED_ON, THREADING

_DEVICE_FILE = "stacks_device.txt"
_KINDS = (OPERATOR, ANNOTATION, RUNTIME, PYTHON)


class _Paths:
    """Call paths as nodes of a tree: calls are many and deep, distinct paths are few."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, str], int] = {}
        self._parents: list[int] = []
        self._names: list[str] = []

    def child(self, parent: int, name: str) -> int:
        """The node of a name inside another node; -1 is the root."""
        node = self._nodes.get((parent, name))
        if node is None:
            node = self._nodes[parent, name] = len(self._names)
            self._parents.append(parent)
            self._names.append(frame(name))
        return node

    def text(self, node: int) -> str:
        """The folded path of a node."""
        frames = []
        while node >= 0:
            frames.append(self._names[node])
            node = self._parents[node]
        return ";".join(reversed(frames))


def frame(name: str) -> str:
    """A name as one frame: characters that would end a frame or a line are replaced."""
    return "".join(
        "," if character == ";" else character if character.isprintable() else "?"
        for character in name.strip()
    )


def folded(window: WindowCalls) -> tuple[dict[str, int], dict[str, int]]:
    """Nanoseconds by call path: on the host, and of the device work launched from there."""
    paths = _Paths()
    host: dict[int, int] = defaultdict(int)
    launchers: dict[int, int] = {}
    operators: dict[int, int] = {}
    for calls in window.threads.values():
        ordered = list(nested(calls, *_KINDS))
        if _is_own_thread(ordered):
            continue
        nodes: dict[int, int] = {}
        own: set[int] = set()
        for call in ordered:
            parent = nodes[id(call.parent)] if call.parent is not None else -1
            if call.kind == PYTHON and _is_own(call, own):
                own.add(id(call))
                nodes[id(call)] = parent
                continue
            node = nodes[id(call)] = paths.child(parent, call.name)
            host[node] += call.self_ns
            if call.kind == RUNTIME and call.correlation:
                launchers[call.correlation] = node
            elif call.kind == OPERATOR and call.external_id:
                operators[call.external_id] = node
    device: dict[int, int] = defaultdict(int)
    for work in window.device_work:
        origin = launchers.get(work.correlation, operators.get(work.external_id, -1))
        device[paths.child(origin, work.name)] += work.dur_ns
    return (
        {paths.text(node): duration for node, duration in host.items() if duration},
        {paths.text(node): duration for node, duration in device.items() if duration},
    )


@functools.cache
def _matches(pattern: str, name: str) -> bool:
    """Whether the name of a call of Python is of a kind: calls are many, names are few."""
    return re.search(pattern, name) is not None


def _is_own(call: Call, own: set[int]) -> bool:
    """Whether a call is Stepscope's own, by its name and the call around it."""
    if _matches(OWN_FILE, call.name):
        return True
    parent = call.parent
    if parent is None or id(parent) not in own or not _matches(CALLED, call.name):
        return False
    return not (_matches(PASSED_ON, call.name) and _matches(OWN_FILE, parent.name))


def _is_own_thread(calls: list[Call]) -> bool:
    """Whether Stepscope started the thread: its frame is the first above those that begin it."""
    begun = set()
    for call in calls:
        if call.kind != PYTHON:
            continue
        if _matches(THREADING, call.name):
            if call.parent is None or id(call.parent) in begun:
                begun.add(id(call))
        elif id(call.parent) in begun and _matches(OWN_FILE, call.name):
            return True
    return False


def make(job: FinishJob, window: WindowCalls, options: dict[str, Any]) -> list[ArtifactRecord]:
    """Write folded stacks, if the option `with_stack` recorded any."""
    if not options["with_stack"]:
        return []
    host, device = folded(window)
    wanted = [("stacks", STACKS_FILE, host)]
    if device:
        wanted.append(("stacks_device", _DEVICE_FILE, device))
    records = []
    for kind, name, stacks in wanted:

        def fill(temporary: Path, stacks: dict[str, int] = stacks) -> None:
            if not write_folded(stacks, temporary):
                raise ArtifactError("no stacks were recorded")

        records.append(make_file(kind, job.window_path / name, fill))
    return records


def write_folded(stacks: dict[str, int], path: Path) -> int:
    """Write folded stacks, heaviest first; returns the number of lines."""
    lines = [
        f"{stack} {round(duration_ns / 1000)}\n"
        for stack, duration_ns in sorted(stacks.items(), key=lambda item: -item[1])
        if round(duration_ns / 1000)
    ]
    path.write_text("".join(lines), encoding="utf-8", errors="replace")
    return len(lines)
