"""The interface of a window, whatever records it.

To add a kind of window, add a module with a `MAKER` to this folder and a line to
`WINDOW_RECORDERS`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from stepscope.capture.options.config import WINDOW_RECORDERS, CaptureConfig
from stepscope.capture.together.ranks import RankIdentity
from stepscope.capture.windows.budget import StepSample
from stepscope.capture.windows.finishing import WindowFinisher
from stepscope.capture.windows.plan import WindowPlan
from stepscope.run.manifest import ArtifactRecord, WindowRecord


@dataclass(frozen=True)
class WindowTools:
    """What windows need to do their work.

    Attributes:
        config: The capture's options.
        identity: This rank.
        finisher: Makes a window's files beside the training.
        write_steps: Brings the step record up to date before a window's files are made.
    """

    config: CaptureConfig
    identity: RankIdentity
    finisher: WindowFinisher
    write_steps: Callable[[], object]


class StepMarks(Protocol):
    """Marks the steps of a window."""

    @property
    def whole_steps(self) -> tuple[int, ...]:
        """The steps that were recorded from start to end."""

    def open(self, step: int) -> None:
        """Begin a step."""

    def close(self, *, is_whole: bool) -> None:
        """End the current step, if any; `is_whole` says whether it was a complete step."""


class Window(Protocol):
    """One window, from its warm-up to its files."""

    @property
    def plan(self) -> WindowPlan:
        """What the window should record."""

    @property
    def ranges(self) -> StepMarks:
        """The steps of the window."""

    @property
    def is_recording(self) -> bool:
        """Whether steps are being recorded."""

    @property
    def is_prepared(self) -> bool:
        """Whether the warm-up has begun."""

    @property
    def lengthens_step(self) -> bool:
        """Whether the window slows the current step down."""

    @property
    def is_of_one_thread(self) -> bool:
        """Whether only the thread that started the window can end it."""

    def prepare(self) -> None:
        """Begin the warm-up."""

    def start(self) -> None:
        """Begin to record, preceded by a warm-up if there was none."""

    def stop(self) -> int:
        """Stop recording; returns how long that took, in nanoseconds."""

    def save(
        self, record: WindowRecord, step_number: int
    ) -> tuple[WindowRecord, BaseException | None]:
        """Make the files of a stopped window, or start making them.

        Args:
            record: What is known about the window so far.
            step_number: Number of the step that begins.

        Returns:
            The record, in the state "saving" while files are being made, and the exception that
            interrupted a user function, to be raised in the end.
        """

    def abandon(self) -> None:
        """Leave the warm-up without having recorded."""

    def discard(self, *, has_thread_ended: bool = False) -> None:
        """Give the window up, whatever its state.

        Args:
            has_thread_ended: Whether the thread that started the window has ended.
        """


class TriedWindow(Window, Protocol):
    """A window that can record one step on trial, to measure its cost."""

    def cost(self) -> StepSample:
        """Stop recording and return the cost of the step. The events are discarded."""


class WindowMaker(Protocol):
    """Makes the windows of one kind."""

    def __init__(self, tools: WindowTools) -> None:
        """Store the tools for the windows to come."""

    @property
    def uses_torchs_profiler(self) -> bool:
        """Whether the windows need torch's only recorder, which another profiler may hold."""

    @property
    def hindrance(self) -> str:
        """Why no window can be recorded at all; empty if windows can be recorded."""

    def get_ready(self) -> None:
        """Look up in advance what the scheduled windows need."""

    def make(self, plan: WindowPlan) -> Window:
        """Make a window that has not begun."""

    def make_trial(self, plan: WindowPlan) -> TriedWindow | None:
        """Make a window that records one step on trial; None if such windows cause no pause."""


def maker_of(tools: WindowTools) -> WindowMaker | None:
    """The maker for the option `window_recorder`, or None if windows are not recorded."""
    module = WINDOW_RECORDERS[tools.config.window_recorder]
    if module is None:
        return None
    maker: type[WindowMaker] = importlib.import_module(f"stepscope.capture.windows.{module}").MAKER
    return maker(tools)


def finished(record: WindowRecord, files: Sequence[ArtifactRecord]) -> WindowRecord:
    """Complete the record of a window whose files exist at once, or come from another tool."""
    if record.last_step is None:
        return dataclasses.replace(record, state="empty", first_step=None)
    state = "partial" if record.reason else "complete"
    return dataclasses.replace(record, state=state, artifacts=tuple(files))


def discard(window: Window, *, has_thread_ended: bool = False) -> None:
    """Give a window up and ignore any error."""
    with contextlib.suppress(Exception):
        window.discard(has_thread_ended=has_thread_ended)
