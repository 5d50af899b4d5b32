"""What the keeper of windows needs of a window, whatever records it.

A kind of windows is a module in this folder with a `MAKER`, and a line in `WINDOW_RECORDERS`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.options.recorders import WINDOW_RECORDERS
from stepscope.capture.together.ranks import RankIdentity
from stepscope.capture.windows.budget import StepSample
from stepscope.capture.windows.finishing import WindowFinisher
from stepscope.capture.windows.plan import WindowPlan
from stepscope.run.manifest import ArtifactRecord, WindowRecord


@dataclass(frozen=True)
class WindowTools:
    """What windows are made with.

    Attributes:
        config: The capture's options.
        identity: Who this rank is.
        finisher: What makes the files of a window beside the training.
        write_steps: Brings the step record up to date, for those who make a window's files.
    """

    config: CaptureConfig
    identity: RankIdentity
    finisher: WindowFinisher
    write_steps: Callable[[], object]


class StepMarks(Protocol):
    """The steps of a window, marked as they go by."""

    @property
    def whole_steps(self) -> tuple[int, ...]:
        """The steps that were recorded to their end."""

    def open(self, step: int) -> None:
        """A step begins."""

    def close(self, *, is_whole: bool) -> None:
        """The step that is going on ends, if any; `is_whole` says whether it was a step."""


class Window(Protocol):
    """One window, from its warm-up to its files."""

    @property
    def plan(self) -> WindowPlan:
        """What it is meant to record."""

    @property
    def ranges(self) -> StepMarks:
        """Its steps."""

    @property
    def is_recording(self) -> bool:
        """Whether steps are being recorded."""

    @property
    def is_prepared(self) -> bool:
        """Whether its warm-up has begun."""

    @property
    def lengthens_step(self) -> bool:
        """Whether the step that goes on takes longer because of it."""

    @property
    def is_of_one_thread(self) -> bool:
        """Whether only the thread that started it can end it."""

    def prepare(self) -> None:
        """Begin the warm-up."""

    def start(self) -> None:
        """Begin to record, with a warm-up just before where there was none."""

    def stop(self) -> int:
        """Stop recording; returns the nanoseconds that it took."""

    def save(
        self, record: WindowRecord, step_number: int
    ) -> tuple[WindowRecord, BaseException | None]:
        """Make the files of a stopped window, or have them made.

        Args:
            record: What is known of the window so far.
            step_number: Number of the step that begins.

        Returns:
            The record, in the state "saving" while files are being made; and what interrupted a
            function of the user's, to be raised in the end.
        """

    def abandon(self) -> None:
        """Leave a warm-up without having recorded."""

    def discard(self, *, has_thread_ended: bool = False) -> None:
        """Give it up, in whatever state it is.

        Args:
            has_thread_ended: Whether the thread that started it has ended, so that another one
                gives it up.
        """


class TriedWindow(Window, Protocol):
    """A window that can record a step on trial, for its cost to be known."""

    def cost(self) -> StepSample:
        """Stop recording, and say what the step cost. The events are of no more use."""


class WindowMaker(Protocol):
    """Makes the windows of one kind."""

    def __init__(self, tools: WindowTools) -> None:
        """Take what windows are made with."""

    @property
    def uses_torchs_profiler(self) -> bool:
        """Whether it needs torch's only recorder, which another profiler may hold."""

    @property
    def hindrance(self) -> str:
        """Why no window can be recorded at all; empty where one can. The log tells it, once."""

    def get_ready(self) -> None:
        """Look for what the schedule's windows will need."""

    def make(self, plan: WindowPlan) -> Window:
        """A window, not begun."""

    def make_trial(self, plan: WindowPlan) -> TriedWindow | None:
        """A window that records one step on trial; None where no such window costs a pause."""


def maker_of(tools: WindowTools) -> WindowMaker | None:
    """What makes windows as the option `window_recorder` wants them; None where it wants none."""
    module = WINDOW_RECORDERS[tools.config.window_recorder]
    if module is None:
        return None
    maker: type[WindowMaker] = importlib.import_module(f"stepscope.capture.windows.{module}").MAKER
    return maker(tools)


def finished(record: WindowRecord, files: Sequence[ArtifactRecord]) -> WindowRecord:
    """The record of a window whose files are made at once, or by another tool."""
    if record.last_step is None:
        return dataclasses.replace(record, state="empty", first_step=None)
    state = "partial" if record.reason else "complete"
    return dataclasses.replace(record, state=state, artifacts=tuple(files))


def discard(window: Window, *, has_thread_ended: bool = False) -> None:
    """Give a window up, whatever goes wrong with that."""
    with contextlib.suppress(Exception):
        window.discard(has_thread_ended=has_thread_ended)
