"""The memory census: which storages held parameters, gradients, activations and the rest, and when.

It is `memory_census.jsonl` in the rank's folder, one JSON object per line, in the format that
`stepscope memory` reads. Addresses are used again, so each sighting has its time. The census is
taken only while memory is being recorded: in a window, or while the allocator's history is on. The
file is rotated: when it is full, it becomes `memory_census.older.jsonl`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from stepscope.capture.steps.tensor_watch import TensorWatch
from stepscope.run.files import LineFile
from stepscope.run.layout import RankLayout
from stepscope.run.manifest import ArtifactRecord

VERSION = 1
MOST_BYTES = 32 * 1024 * 1024
"""The size at which the file is rotated."""
KIND = "memory_census"
_LASTING = ("parameter", "buffer", "optimizer_state")
"""Kinds that stay where they are: noted when they are first seen, and when they move."""


class MemoryCensus:
    """Writes the census of one rank."""

    def __init__(
        self,
        layout: RankLayout,
        note: Callable[[ArtifactRecord], None],
        is_recording: Callable[[], bool],
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._layout = layout
        self._note = note
        self._is_recording = is_recording
        self._most_bytes = most_bytes
        self._step = 0
        self._file: LineFile | None = None
        self._size = 0
        self._names: dict[str, int] = {}
        self._lasting: dict[str, list[tuple[Any, ...]]] = {}
        self.watch = TensorWatch(self._sight)

    def step_begins(self, step: int) -> None:
        """Listen to a step if memory is recorded in it."""
        self._step = step
        if self._is_recording():
            self.watch.listen()
        elif self.watch.is_listening:
            self.watch.leave()

    def close(self) -> None:
        """End the census."""
        self.watch.leave()
        file, self._file = self._file, None
        if file is None:
            return
        file.close()
        problem, layout = file.problem or self.watch.problem, self._layout
        self._note(ArtifactRecord.of(KIND, layout.census, layout.root, problem=problem))

    def _sight(self, kind: str, found: list[tuple[Any, ...]]) -> None:
        """Write what was seen: one line for each device."""
        if not found:
            return
        if kind in _LASTING:
            places = [entry[:3] for entry in found]
            key = f"{kind} {places[0]}"  # several models and optimizers each have their own
            if self._lasting.get(key) == places:
                return
            self._lasting[key] = places
        for device in sorted({entry[0] for entry in found}):
            mine = [entry for entry in found if entry[0] == device]
            times = [entry[3] for entry in mine]
            names, added = self._numbers([entry[4] for entry in mine])
            if added:
                self._write({"names": added})
            record: dict[str, Any] = {"kind": kind, "device": device, "step": self._step}
            if len(set(times)) == 1:
                record["time_ns"] = times[0]
            else:
                record["times_ns"] = times
            record["addresses"] = [entry[1] for entry in mine]
            record["bytes"] = [entry[2] for entry in mine]
            record["names"] = names
            self._write(record)
        if self._size > self._most_bytes:
            self._rotate()

    def _numbers(self, names: list[str | None]) -> tuple[list[int | None], list[str]]:
        """The numbers of names, and the names that are new."""
        numbers: list[int | None] = []
        added = []
        for name in names:
            if name is not None and name not in self._names:
                self._names[name] = len(self._names)
                added.append(name)
            numbers.append(None if name is None else self._names[name])
        return numbers, added

    def _write(self, record: dict[str, Any]) -> None:
        if self._file is None:
            self._layout.root.mkdir(parents=True, exist_ok=True)
            self._file = LineFile(self._layout.census)
            self._put({"census": VERSION, "clock": "unix_ns"})
        self._put(record)

    def _put(self, record: dict[str, Any]) -> None:
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        self._size += len(line)
        if self._file is not None:
            self._file.write(line)

    def _rotate(self) -> None:
        if self._file is not None:
            self._file.close()
        self._layout.census.replace(self._layout.older_census)
        self._file, self._size = None, 0
        # The new file stands alone: it has its own names, and what lasts is noted again.
        self._names.clear()
        self._lasting.clear()
