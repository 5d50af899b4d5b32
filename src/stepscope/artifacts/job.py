"""The job of the finishing process: plain values, passed as JSON."""

from __future__ import annotations

import dataclasses
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
        trace_format: "json.gz", "json" or "json.zst".
        artifacts: Modules of `stepscope.artifacts` that make further files, each with its options.
        made: Files of the window that already exist, as (kind, name).
        custom: Custom artifacts to make here, as "module:qualified.name".
        tensorboard_directory: Where to put a copy under TensorBoard's names; empty for none.
        tensorboard_worker: Name of the worker in those names.
        tensorboard_ns: The time in those names, nanoseconds since the epoch: when the window ended.
        search_path: Folders in which custom artifacts' modules are found.
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
    made: tuple[tuple[str, str], ...] = ()
    custom: tuple[str, ...] = ()
    tensorboard_directory: str = ""
    tensorboard_worker: str = ""
    tensorboard_ns: int = 0
    search_path: tuple[str, ...] = ()

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
        values["made"] = tuple((kind, name) for kind, name in values["made"])
        for name in ("steps", "custom", "search_path"):
            values[name] = tuple(values[name])
        return cls(**values)
