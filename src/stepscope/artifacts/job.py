"""What the finishing process is asked to do: plain values that travel as JSON."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from stepscope.run.layout import WINDOW_FILE

TRACE_FORMATS = ("json.gz", "json", "json.zst")


@dataclass(frozen=True)
class FinishJob:
    """One window to finish.

    Attributes:
        raw: The trace as torch wrote it; it is removed in the end.
        directory: The window's folder.
        index: Number of the window.
        steps: The steps that the trace must hold.
        rank: The rank that recorded it.
        is_step_lost: Whether a window without any whole step is all right (the loop ended).
        needs_kernels: Whether a GPU was asked for, so that kernels must be there.
        renames: Names of step ranges that were opened and did not become steps, and what they
            shall be called instead.
        trace: Whether to keep the trace.
        trace_format: "json.gz", "json" or "json.zst".
        trace_name: Name of the trace file. Empty: "trace." and the format.
        key_averages: Whether to write the table of operators.
        key_averages_sort: Column that orders it.
        key_averages_rows: Greatest number of rows of the text; -1 for all.
        flops: Whether the table shall have floating-point operations.
        stacks: Whether to write folded stacks.
        stacks_metric: "auto", "self_cpu_time_total" or "self_cuda_time_total".
        memory_timeline: Whether to draw memory over time.
        made: Files that are there already and belong to the window, as (kind, name).
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
    is_step_lost: bool = False
    needs_kernels: bool = False
    renames: dict[str, str] = field(default_factory=dict)
    trace: bool = True
    trace_format: str = "json.gz"
    trace_name: str = ""
    key_averages: bool = True
    key_averages_sort: str = "auto"
    key_averages_rows: int = 100
    flops: bool = False
    stacks: bool = False
    stacks_metric: str = "auto"
    memory_timeline: bool = False
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
        """Where the finished trace stands."""
        return self.window_path / (self.trace_name or f"trace.{self.trace_format}")

    @property
    def result_path(self) -> Path:
        """Where the finishing process says what it did."""
        return self.window_path / WINDOW_FILE

    def encode(self) -> str:
        """The job as one line of JSON."""
        return orjson.dumps(dataclasses.asdict(self)).decode()

    @classmethod
    def decode(cls, text: str) -> FinishJob:
        """The job of a line of JSON that `encode` made."""
        values = orjson.loads(text)
        values["made"] = tuple((kind, name) for kind, name in values["made"])
        for name in ("steps", "custom", "search_path"):
            values[name] = tuple(values[name])
        return cls(**values)
