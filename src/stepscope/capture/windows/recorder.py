"""What a window is, whatever records it.

To add a kind of window, add a module with a subclass of `Window` named `RECORDER` to this folder
and a line to `WINDOW_RECORDERS`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.options.option import options_of
from stepscope.capture.ranks import RankIdentity
from stepscope.capture.windows.planner import WindowPlan
from stepscope.run.manifest import ArtifactRecord, WindowRecord

if TYPE_CHECKING:
    from stepscope.capture.windows.planner import StepSample
    from stepscope.capture.windows.saving import WindowFinisher


@dataclass(frozen=True)
class WindowTools:
    """What windows need to do their work.

    Attributes:
        write_steps: Brings the step record up to date before a window's files are made.
        activities: What torch can record of what was asked for; empty before the first window.
    """

    config: CaptureConfig
    identity: RankIdentity
    finisher: WindowFinisher
    write_steps: Callable[[], object]
    activities: list[Any] = field(default_factory=list)


class StepMarks(Protocol):
    """Marks the steps of a window."""

    @property
    def whole_steps(self) -> tuple[int, ...]:
        """The steps that were recorded from start to end."""

    def open(self, step: int) -> None:
        """Begin a step."""

    def close(self, *, is_whole: bool) -> None:
        """End the current step, if any; `is_whole` says whether it was a complete step."""


class Window:
    """One window, from its warm-up to its files. A subclass records.

    Attributes:
        uses_torch_profiler: Whether it needs torch's only recorder, which others may hold.
        is_of_one_thread: Whether only the thread that started the window can end it.
        can_be_tried: Whether one step can be recorded on trial; False if windows cause no pause.
        interruption: What interrupted a user function in `save`, to be raised in the end, or None.
    """

    uses_torch_profiler = True
    is_of_one_thread = True
    can_be_tried = False
    interruption: BaseException | None = None
    ranges: StepMarks

    def __init__(self, tools: WindowTools, plan: WindowPlan) -> None:
        self.plan = plan
        self.is_recording = False
        self._tools = tools

    @staticmethod
    def unavailable_reason() -> str:
        """Why no window can be recorded at all; empty if windows can be recorded."""
        return ""

    @property
    def lengthens_step(self) -> bool:
        """Whether the window slows the current step down."""
        return self.is_recording

    def prepare(self) -> None:
        """Begin the warm-up."""

    def start(self) -> None:
        """Begin to record, after `prepare`."""
        raise NotImplementedError

    def stop(self) -> int:
        """Stop recording; returns how long that took, in nanoseconds."""
        raise NotImplementedError

    def cost(self) -> StepSample:
        """Stop recording a step on trial and return its cost. The events are discarded."""
        raise NotImplementedError

    def save(self, record: WindowRecord, step_number: int) -> WindowRecord:
        """Make the files of a stopped window, or start making them.

        Returns:
            The record, in the state "saving" while files are being made.
        """
        raise NotImplementedError

    def abandon(self) -> None:
        """Leave the warm-up without having recorded."""

    def discard(self, *, has_thread_ended: bool = False) -> None:  # noqa: ARG002
        """Give the window up, whatever its state; the thread that started it may have ended."""
        if self.is_recording:
            self.stop()


def finished(record: WindowRecord, files: Sequence[ArtifactRecord]) -> WindowRecord:
    """Complete the record of a window whose files exist at once, or come from another tool."""
    if record.last_step is None:
        return dataclasses.replace(record, state="empty", first_step=None)
    state = "partial" if record.reason else "complete"
    return dataclasses.replace(record, state=state, artifacts=tuple(files))


class StepRanges:
    """Marks steps in the trace, and tracks which ranges turned out not to be steps.

    A range is opened before it is known whether a step will follow: the loop may end first. Torch
    cannot rename a range afterwards, so a range that is opened again gets another name, and the
    right names are filled in when the trace is written.
    """

    def __init__(self) -> None:
        self._range: Any = None
        self._name = ""
        self._step = 0
        self._opened: dict[int, int] = {}
        self._whole: dict[int, str] = {}
        self._void: list[tuple[int, str]] = []

    @property
    def whole_steps(self) -> tuple[int, ...]:
        """The steps that were recorded from start to end."""
        return tuple(self._whole)

    def open(self, step: int) -> None:
        """Begin the range of a step."""
        import torch

        times = self._opened[step] = self._opened.get(step, 0) + 1
        self._step = step
        self._name = f"ProfilerStep#{step}" if times == 1 else f"ProfilerStep#{step}/{times}"
        self._range = torch.profiler.record_function(self._name)
        self._range.__enter__()

    def close(self, *, is_whole: bool) -> None:
        """End the open range, if any; `is_whole` says whether it was a complete step."""
        if self._range is None:
            return
        step_range, self._range = self._range, None
        if is_whole:
            self._whole[self._step] = self._name
        else:
            self._void.append((self._step, self._name))
        step_range.__exit__(None, None, None)

    def renames(self) -> dict[str, str]:
        """Names of ranges to replace in the finished trace."""
        result = {name: f"ProfilerStep#{step}" for step, name in self._whole.items() if "/" in name}
        for step, name in self._void:
            # A trace without a complete step keeps its partial one: there is nothing else to see.
            is_all = not self._whole and (step, name) == self._void[-1]
            wanted = f"ProfilerStep#{step}" if is_all else f"stepscope.no_step#{step}"
            if wanted != name:
                result[name] = wanted
        return result


SCRATCH = ".raw"
"""Folder inside a window's folder for files that are only needed until the window is finished."""


def artifact_options(config: CaptureConfig, **changes: Any) -> dict[str, dict[str, Any]]:
    """The modules that make a window's files, each with the options that it reads."""
    chosen: dict[str, dict[str, Any]] = {}
    for name, option in options_of(config).items():
        if option.artifact:
            value = changes.get(name, getattr(config, name))
            chosen.setdefault(option.artifact, {})[name] = value
    return chosen
