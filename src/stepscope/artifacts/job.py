"""What the finishing process is given: its job, as JSON, and the trace as torch wrote it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from stepscope.run.layout import WINDOW_FILE

TORCH_TIMELINE = "memory_timeline_torch.json.gz"
"""In a window's folder: the memory timeline that torch exported in the training process."""


@dataclass(frozen=True)
class FinishJob:
    """One window to finish.

    Attributes:
        raw: The trace as torch wrote it; it is removed at the end.
        steps: The steps that the trace must contain.
        needs_kernels: Whether GPU activity was requested, so that kernels are required.
        renames: Names of step ranges that were opened but did not become steps, to new names.
        trace_format: "json.gz" or "json".
        artifacts: Modules of `stepscope.artifacts` that make further files, each with its options.
        tensorboard_directory: Where to put a copy under TensorBoard's names; empty for none.
        tensorboard_ns: The time in those names, nanoseconds since the epoch: when the window ended.
    """

    raw: str
    directory: str
    index: int
    steps: tuple[int, ...] = ()
    rank: int = 0
    needs_kernels: bool = False
    renames: dict[str, str] = field(default_factory=dict)
    trace: bool = True
    trace_format: str = "json.gz"
    flops: bool = False
    artifacts: dict[str, dict[str, Any]] = field(default_factory=dict)
    tensorboard_directory: str = ""
    tensorboard_worker: str = ""
    tensorboard_ns: int = 0

    @property
    def raw_path(self) -> Path:
        """The trace as torch wrote it."""
        return Path(self.raw)

    @property
    def window_path(self) -> Path:
        """The window's folder."""
        return Path(self.directory)

    @property
    def trace_path(self) -> Path:
        """The path of the finished trace."""
        return self.window_path / f"trace.{self.trace_format}"

    @property
    def result_path(self) -> Path:
        """The path of the finishing process's result."""
        return self.window_path / WINDOW_FILE

    def encode(self) -> str:
        """The job as one line of JSON."""
        return orjson.dumps(dataclasses.asdict(self)).decode()

    @classmethod
    def decode(cls, text: str) -> FinishJob:
        """The job in a line of JSON from `encode`."""
        values = orjson.loads(text)
        values["steps"] = tuple(values["steps"])
        return cls(**values)


_BLOCK_BYTES = 4 << 20
_SEPARATOR = re.compile(rb"\n *\},\n *\{")
_LAST_EVENT = re.compile(rb"(.*?)\}\s*\]", re.DOTALL)
_EVENTS = re.compile(rb'"traceEvents": ?\[')
_STEP_NAME = re.compile(rb'"(ProfilerStep#\d+(?:/\d+)?)"')
_LONGEST_HEADER_BYTES = 64 << 20


class RawTraceError(Exception):
    """A raw trace is missing, truncated, or not a trace."""


@dataclass
class RawTrace:
    """Torch's own JSON in kineto's layout: every event begins on a new line.

    Attributes:
        broken_events: Events that are not valid JSON, counted while reading.
        header: The text before the events, known once reading has begun.
    """

    path: Path
    broken_events: int = 0
    first_problem: str = ""
    header: bytes = b""

    def check_ends(self) -> int:
        """Check both ends of the file; returns its size in bytes.

        torch reports a missing folder or a full disk only on standard error, so the file itself
        must be checked.

        Raises:
            RawTraceError: The file is missing or truncated.
        """
        try:
            size = self.path.stat().st_size
            with self.path.open("rb") as file:
                head = file.read(64).lstrip()
                file.seek(max(0, size - 64))
                tail = file.read().rstrip()
        except OSError:
            raise RawTraceError(
                "torch wrote no trace file "
                "(full disk, no file descriptor left, or the folder removed?)"
            ) from None
        if not head.startswith(b"{") or not tail.endswith(b"}"):
            raise RawTraceError(f"torch's trace file is truncated after {size} bytes (full disk?)")
        return size

    def events(self) -> Iterator[dict[str, Any]]:
        """All events, in the order of the file; those that are not valid JSON are counted.

        Raises:
            RawTraceError: There is no list of events.
        """
        for piece in self._pieces():
            try:
                event = orjson.loads(piece)
            except orjson.JSONDecodeError:
                event = self._repair(piece)
            if isinstance(event, dict):
                yield event

    def _repair(self, piece: bytes) -> object:
        """Read an event with invalid text in a name, or count it as broken."""
        try:
            return orjson.loads(piece.decode("utf-8", errors="replace"))
        except orjson.JSONDecodeError as error:
            self.broken_events += 1
            if not self.first_problem:
                self.first_problem = f"{error}: {piece[:120]!r}"
            return None

    def _pieces(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            rest = self._read_header(file)
            is_last = False
            while not is_last:
                block = file.read(_BLOCK_BYTES)
                is_last = len(block) < _BLOCK_BYTES
                rest += block
                pieces = _SEPARATOR.split(rest)
                rest = pieces.pop()
                for piece in pieces:
                    yield _braced(piece)
            last = _LAST_EVENT.match(rest)
            if last:
                yield _braced(last.group(1))

    def _read_header(self, file: Any) -> bytes:
        text = b""
        while len(text) < _LONGEST_HEADER_BYTES:
            block = file.read(_BLOCK_BYTES)
            text += block
            match = _EVENTS.search(text)
            if match:
                self.header = text[: match.start()]
                return bytes(text[match.end() :])
            if not block:
                break
        raise RawTraceError("there is no list of events in torch's trace file")


def blocks_with_names(path: Path, renames: dict[str, str]) -> Iterator[bytes]:
    """The file in blocks, with renamed step ranges."""
    table = {old.encode(): new.encode() for old, new in renames.items()}

    def rename(match: re.Match[bytes]) -> bytes:
        name = match.group(1)
        return b'"' + table.get(name, name) + b'"'

    with path.open("rb") as file:
        rest = b""
        while block := file.read(_BLOCK_BYTES):
            if not table:
                yield block
                continue
            # A name never spans lines, so a block can end at any line end.
            whole, newline, tail = block.rpartition(b"\n")
            if not newline:
                rest += block
                continue
            yield _STEP_NAME.sub(rename, rest + whole + newline)
            rest = tail
        if rest:
            yield _STEP_NAME.sub(rename, rest)


def _braced(piece: bytes) -> bytes:
    text = piece.strip()
    if not text.startswith(b"{"):
        text = b"{" + text
    return text + b"}"
