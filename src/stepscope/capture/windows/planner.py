"""When a window is due, by schedule and requests, and what it may cost."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import shutil
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stepscope.capture.messages import size_text
from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.options.schedule import Action
from stepscope.capture.ranks import RankIdentity, parse_ranks, records
from stepscope.errors import UsageError
from stepscope.run.figures import duration
from stepscope.run.layout import RankLayout
from stepscope.run.manifest import WindowRecord
from stepscope.run.triggers import Trigger

log = logging.getLogger("stepscope")

_MOST_REQUESTS = 16


@dataclass(frozen=True)
class WindowPlan:
    """What a window should record.

    Attributes:
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


class WindowPlanner:
    """Decides when a window begins, and numbers the windows.

    Args:
        note: Notes a window that will not be recorded: its plan, a state and the reason.
        unavailable_reason: Why no window can be recorded at all; empty if windows can be recorded.

    Attributes:
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
        self._identity = identity
        self._note = note
        self._unavailable_reason = unavailable_reason
        self.follows_schedule = not unavailable_reason and records(config.ranks, identity)
        self._others: dict[int, int] = {}
        self._requests: deque[Trigger] = deque()
        self._warmup_on_request = max(1, config.warmup)
        self._next_index = 0
        self._last_cycle = -1
        self.wake: Callable[[], object] = bool

    def request(self, request: Trigger) -> None:
        """Request a window outside the schedule. May be called from any thread.

        One of other ranks is none here, but this one pauses with those that record it.
        """
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
            warmup = self._warmup_on_request
            due.append(step if first.first_step is None else first.first_step - warmup)
        if self.follows_schedule:
            due.append(self._schedule.next_action(step))
        else:
            due.append(self._schedule.next_save(step - 1) + 1)
        return max(step, min(due))

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
            request, warmup = self._requests[0], self._warmup_on_request
            first = step + warmup if request.first_step is None else request.first_step
            if step >= first - warmup:
                self._requests.popleft()
                if not self._records(request):
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
        if not self.follows_schedule or self._schedule.action(step) is Action.NONE:
            return None
        cycle = self._schedule.window(step)
        if cycle is None or cycle == self._last_cycle:
            return None
        self._last_cycle = cycle
        steps = self._schedule.recorded_steps(cycle)
        plan = self._plan(steps.start, len(steps), "schedule")
        if step > steps.start:
            self._note(plan, "skipped", "another window was open when it should have begun")
            return None
        return plan

    def _records(self, request: Trigger) -> bool:
        """Whether this rank records the window that was requested."""
        if request.ranks:
            with contextlib.suppress(UsageError):
                return records(parse_ranks(request.ranks), self._identity)
        return self.follows_schedule

    def _plan(
        self, first_step: int, steps: int, cause: str, request: Trigger | None = None
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


_SPACE_FACTOR = 2.0
"""A window needs its raw trace and its finished files at the same time."""
_LIMITS = ("max_pause_s", "max_window_bytes")
"""The options that limit what a window costs."""


@dataclass(frozen=True)
class StepSample:
    """The cost of one recorded step; of its events, the share that are Python functions."""

    pause_ns: float
    raw_bytes: float
    stack_share: float = 0.0


class Budget:
    """Fits windows to the limits in the options and to the disk."""

    def __init__(self, config: CaptureConfig, layout: RankLayout) -> None:
        self._config = config
        self._layout = layout
        # A step with stacks costs several times one without: each kind of window has its own.
        self._samples: dict[tuple[str, ...], StepSample] = {}

    @property
    def wants_sample(self) -> bool:
        """Whether a step must be recorded on trial before a window can be fitted."""
        return any(getattr(self._config, name) is not None for name in _LIMITS)

    def learn(self, sample: StepSample, details: tuple[str, ...] = ()) -> None:
        """Store the cost of a trial step of a window with these details."""
        self._samples[details] = sample

    def learn_from(self, record: WindowRecord) -> None:
        """Learn the cost of a step from a finished window."""
        if record.state != "complete" or not record.raw_bytes or not record.planned_steps:
            return
        known = self._samples.get(record.details)
        share = known.stack_share if known is not None else 0.0
        pause_ns = record.stop_ns + record.export_ns
        steps = record.planned_steps
        cost = StepSample(pause_ns / steps, record.raw_bytes / steps, share)
        self._samples[record.details] = cost

    def predicted_pause_ns(self, plan: WindowPlan) -> int | None:
        """How long the window's end will pause the training; None if unknown."""
        sample = self._samples.get(plan.details)
        return None if sample is None else round(sample.pause_ns * plan.steps)

    def fit(self, plan: WindowPlan) -> WindowPlan:
        """The plan, reduced if it would exceed a limit; its note says how."""
        sample = self._samples.get(plan.details)
        if sample is None or not self.wants_sample:
            return plan
        steps = self._steps_that_fit(sample)
        note = ""
        with_stack, details = plan.with_stack, plan.details
        if steps < 1 and with_stack and sample.stack_share:
            with_stack = False
            details = tuple(name for name in details if name != "with_stack")
            rest = 1 - sample.stack_share
            sample = StepSample(sample.pause_ns * rest, sample.raw_bytes * rest)
            steps = self._steps_that_fit(sample)
            note = "Python stacks left out"
        fitted = max(1, min(plan.steps, steps))
        if fitted < plan.steps:
            note += f"{', ' if note else ''}{fitted} of {plan.steps} steps recorded"
        if note:
            limits = ((name, getattr(self._config, name)) for name in _LIMITS)
            given = ", ".join(f"{name}={limit}" for name, limit in limits if limit is not None)
            pause, size = duration(sample.pause_ns), size_text(round(sample.raw_bytes))
            note = f"{note} to stay within {given}: a step costs about {pause} of pause and {size}"
            log.warning("stepscope: window %d: %s", plan.index, note)
        return dataclasses.replace(
            plan, steps=fitted, with_stack=with_stack, details=details, note=note
        )

    def refusal(self, plan: WindowPlan) -> str:
        """Why this window may not be opened now; empty if it may."""
        needed = float(self._config.min_free_bytes)
        sample = self._samples.get(plan.details)
        if sample is not None and needed:
            window_bytes = sample.raw_bytes * plan.steps * _SPACE_FACTOR
            needed = max(needed, window_bytes)
        if not needed:
            return ""
        folder = self._layout.root
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        try:
            free = shutil.disk_usage(folder).free
        except OSError as error:
            return f"the free disk space is unknown: {error}"
        if free >= needed:
            return ""
        return (
            f"its disk has only {size_text(free)} free, and it may need "
            f"{size_text(round(needed))} (min_free_bytes={self._config.min_free_bytes})"
        )

    def prune(self, windows: tuple[WindowRecord, ...]) -> list[WindowRecord]:
        """Remove the files of the oldest windows above the limit; returns their new records."""
        kept = self._config.keep_windows
        finished = [window for window in windows if window.state in {"complete", "partial"}]
        removed = finished[:-kept] if kept else []
        for window in removed:
            with contextlib.suppress(OSError):
                shutil.rmtree(self._layout.window(window.index))
        reason = f"removed to stay within keep_windows={kept}"
        return [
            dataclasses.replace(window, state="removed", artifacts=(), reason=reason)
            for window in removed
        ]

    def _steps_that_fit(self, sample: StepSample) -> int:
        steps = float("inf")
        if self._config.max_pause_s is not None and sample.pause_ns > 0:
            steps = min(steps, self._config.max_pause_s * 1e9 // sample.pause_ns)
        if self._config.max_window_bytes is not None and sample.raw_bytes > 0:
            steps = min(steps, self._config.max_window_bytes // sample.raw_bytes)
        return int(min(steps, 1 << 30))


def sample_of(path: Path, pause_ns: int) -> StepSample:
    """The cost of one recorded step, from its raw trace."""
    events = functions = 0
    with path.open("rb") as file:
        for line in file:
            # Kineto writes one key of an event to a line.
            if line.lstrip().startswith(b'"cat":'):
                events += 1
                functions += b'"python_function"' in line
    return StepSample(pause_ns, path.stat().st_size, functions / events if events else 0.0)
