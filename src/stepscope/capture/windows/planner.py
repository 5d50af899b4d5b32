"""Which window comes next: a scheduled one, or one that was requested."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.options.schedule import Action
from stepscope.capture.together.ranks import RankIdentity, records
from stepscope.run.layout import RankLayout

log = logging.getLogger("stepscope")

_MOST_REQUESTS = 16


@dataclass(frozen=True)
class WindowPlan:
    """What a window should record.

    Attributes:
        cause: What requested it.
        note: How the plan was changed, and why; empty if it was not.
        with_memory: Whether a memory snapshot is taken at its end.
        details: Options that are off in the capture and on in this window.
    """

    index: int
    first_step: int
    steps: int
    directory: Path
    cause: str = "schedule"
    note: str = ""
    with_stack: bool = False
    with_memory: bool = False
    details: tuple[str, ...] = ()

    @property
    def last_step(self) -> int:
        """The last step to record."""
        return self.first_step + self.steps - 1


@dataclass(frozen=True)
class WindowRequest:
    """A request for a window outside the schedule.

    Attributes:
        cause: What requested it.
        steps: Number of steps to record.
        first_step: The first step to record; None for as soon as possible.
        warmup: Number of warm-up steps before it.
        is_ours: Whether this rank records it. If not, the rank only pauses with those that do.
        with_memory: Whether to take a memory snapshot as well.
        details: Options that are on in this window, whatever the capture's are.
    """

    cause: str
    steps: int
    first_step: int | None = None
    warmup: int = 1
    is_ours: bool = True
    with_memory: bool = False
    details: tuple[str, ...] = ()


class WindowPlanner:
    """Decides when a window begins, and numbers the windows.

    Args:
        note: Notes a window that will not be recorded: its plan, a state and the reason.
        unavailable_reason: Why no window can be recorded at all; empty if windows can be recorded.

    Attributes:
        follows_schedule: Whether this rank records the scheduled windows.
        wake: Called when a window is requested; from any thread.
    """

    def __init__(
        self,
        config: CaptureConfig,
        layout: RankLayout,
        identity: RankIdentity,
        note: Callable[[WindowPlan, str, str], None],
        unavailable_reason: str = "",
    ) -> None:
        self._config = config
        self._schedule = config.schedule
        self._layout = layout
        self._note = note
        self._unavailable_reason = unavailable_reason
        self.follows_schedule = not unavailable_reason and records(config.ranks, identity)
        self._others: dict[int, int] = {}
        self._requests: deque[WindowRequest] = deque()
        self._next_index = 0
        self._last_cycle = -1
        self.wake: Callable[[], object] = bool

    def request(self, request: WindowRequest) -> None:
        """Request a window outside the schedule. May be called from any thread."""
        if self._unavailable_reason:
            log.warning("stepscope: a requested window is skipped: %s", self._unavailable_reason)
        elif len(self._requests) < _MOST_REQUESTS:
            self._requests.append(request)
            self.wake()
        else:
            log.warning("stepscope: too many windows were requested at once: one is skipped")

    def next_due(self, step: int) -> int:
        """The first step from `step` on at whose beginning there may be something to do."""
        due = [ended + 1 for ended in self._others]
        if self._requests:
            first = self._requests[0]
            due.append(step if first.first_step is None else first.first_step - first.warmup)
        if self.follows_schedule:
            due.append(self._schedule.next_action(step))
        else:
            due.append(self._schedule.next_save(step - 1) + 1)
        return max(step, min(due))

    def wants_window(self, step: int) -> bool:
        """Whether a window may begin at this step; a cheap check."""
        if self._requests:
            return True
        return self.follows_schedule and self._schedule.action(step) is not Action.NONE

    def others_window(self, ended: int) -> int | None:
        """First step of a window that ends here and that only other ranks recorded."""
        first_step = self._others.pop(ended, None)
        if not self.follows_schedule and self._schedule.action(ended) is Action.RECORD_AND_SAVE:
            cycle = self._schedule.window(ended)
            first_step = self._schedule.recorded_steps(cycle).start if cycle is not None else None
        return first_step

    def next_plan(self, step: int) -> WindowPlan | None:
        """The window whose warm-up begins at this step, or None."""
        if self._requests:
            request = self._requests[0]
            first = step + request.warmup if request.first_step is None else request.first_step
            if step >= first - request.warmup:
                self._requests.popleft()
                if not request.is_ours:
                    self._others[first + request.steps - 1] = first
                    return None
                plan = self._plan(first, request.steps, request.cause, request)
                if step <= first:
                    return plan
                self._note(
                    plan,
                    "skipped",
                    "it should have begun while another window was open, or before this rank knew",
                )
                return None
        if not self.follows_schedule:
            return None
        cycle = self._schedule.window(step)
        if cycle is None or cycle == self._last_cycle:
            return None
        if self._schedule.action(step) is Action.NONE:
            return None
        self._last_cycle = cycle
        steps = self._schedule.recorded_steps(cycle)
        plan = self._plan(steps.start, len(steps), "schedule")
        if step > steps.start:
            self._note(plan, "skipped", "another window was open when it should have begun")
            return None
        return plan

    def _plan(
        self, first_step: int, steps: int, cause: str, request: WindowRequest | None = None
    ) -> WindowPlan:
        index = self._next_index
        self._next_index += 1
        # A detail that the options ask for anyway is nothing out of the ordinary.
        asked = request.details if request is not None else ()
        details = tuple(name for name in asked if not getattr(self._config, name))
        return WindowPlan(
            index,
            first_step,
            steps,
            self._layout.window(index),
            cause,
            with_stack=self._config.with_stack or "with_stack" in details,
            with_memory=request is not None and request.with_memory,
            details=details,
        )


def another_profiler_runs() -> bool:
    """Whether a torch profiler is already recording in this process."""
    import torch

    enabled = getattr(torch.autograd, "_profiler_enabled", None)
    return bool(enabled()) if enabled is not None else False
