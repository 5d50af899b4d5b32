"""Turns the calls of a framework's callbacks into a recording."""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from stepscope.adapters.profiler import Profiler
from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.ranks import NestedProfilerError, RankIdentity, identify
from stepscope.capture.steps.detector import Detector, Policy
from stepscope.capture.steps.phase_times import ENTER
from stepscope.capture.steps.replacements import Replacements
from stepscope.capture.steps.work import UNKNOWN, Work, work_of
from stepscope.errors import StepscopeError, UsageError
from stepscope.run.step_record import EVALUATION, FORWARD, MICRO_BATCH, OPTIMIZER_STEP

log = logging.getLogger("stepscope")

_MOST_FETCHED = 4096
"""Maximum number of batches that a framework fetches ahead of using them."""


_NO_STEP = (
    "nothing was recorded: the training ended without a step, as one does that is resumed where it "
    "had ended"
)

_Callback = TypeVar("_Callback", bound="CallbackBase")


class BrokenOffError(StepscopeError):
    """A training that had not ended when another one began."""


def with_unit(config: CaptureConfig) -> CaptureConfig:
    """The options where a framework ends steps: of the optimizer, unless of micro-batches."""
    unit = MICRO_BATCH if config.step_unit == MICRO_BATCH else OPTIMIZER_STEP
    return dataclasses.replace(config, step_unit=unit, auto_phases=False)


def identity_of(rank: int, local_rank: int, world_size: int) -> RankIdentity:
    """The rank of this process according to a framework; the node according to the launcher."""
    if world_size < 2:
        return RankIdentity()
    return RankIdentity(rank, local_rank, world_size, identify().node)


class _Training(NamedTuple):
    """A training while it is recorded."""

    profiler: Profiler
    detector: Detector


class TrainingRecorder(Policy):
    """Records the trainings that a framework's callbacks announce, each as a separate run.

    Waits for DataLoaders, backward passes and optimizer steps are timed during a training. The
    callbacks say where a step ends, where a forward pass begins, and what does not belong to a
    step. Only the thread that began the training counts. An uncaught error ends the recording as
    such.

    Args:
        prototype: A profiler that was not started; each training gets a copy.

    Attributes:
        profiler: The profiler of the current or last training; None before the first.
        is_in_step: Whether the work of a step has begun and not ended.
        replaced: What was replaced in the framework and in Python, until the training ends.
    """

    def __init__(self, prototype: Profiler) -> None:
        self._prototype = prototype
        self.profiler: Profiler | None = None
        self._training: _Training | None = None
        self.is_in_step = False
        self._data: int | None = None
        self._fetched: deque[Work] | None = None
        self._excluded: tuple[str, AbstractContextManager[None]] | None = None
        self.replaced = Replacements()

    @property
    def is_on(self) -> bool:
        """Whether a training is being recorded."""
        return self._training is not None

    @property
    def has_stepped(self) -> bool:
        """Whether the optimizer has stepped in the step that is open."""
        return self._training is not None and self._training.detector.has_stepped

    @property
    def counts_micro_batches(self) -> bool:
        """Whether each micro-batch is a step."""
        return self._prototype.config.step_unit == MICRO_BATCH

    # -- beginning and end ----------------------------------------------------------------------

    def begin(
        self,
        identity: RankIdentity,
        *,
        steps_before: int = 0,
        data: object = None,
        times_fetches: bool = True,
        keeps_work: bool = False,
    ) -> None:
        """Start recording a training; where another profiler records, it is not recorded.

        Args:
            steps_before: Optimizer steps that a resumed training had done.
            data: The training's dataset; waits for other DataLoaders are not timed. None for any
                dataset.
            times_fetches: Whether to time waits for DataLoaders here.
            keeps_work: Whether the framework uses every fetched batch in order, and calls `forward`
                for each: it may fetch them long before.
        """
        if self._training is not None:
            self.finish(BrokenOffError("another training began before this one had ended"))
        if not self._prototype.config.enabled:
            return
        given = self._prototype
        profiler = Profiler(with_unit(given.config), identity=identity, **given._beside)
        profiler.session.option_names = given.session.option_names
        if not self.counts_micro_batches:
            profiler.session.steps_before = steps_before
        try:
            profiler.start()
        except NestedProfilerError as error:
            log.warning("stepscope: this callback records nothing: %s", error)
            return
        if profiler.run_path is None:
            return
        self.profiler = profiler
        self.is_in_step = False
        self._data = None if data is None else id(data)
        self._fetched = deque(maxlen=_MOST_FETCHED) if keeps_work else None
        detector = Detector(self)
        self._training = _Training(profiler, detector)
        detector.attach(profiler.session.steps)
        detector.install(fetches=times_fetches)
        self.replaced.replace(sys, "excepthook", self._around_excepthook)

    def finish(self, error: BaseException | None = None) -> None:
        """End the recording, with the error that ended the training if any. Idempotent."""
        training = self._training
        if training is None or training.profiler.session.is_forked:
            return
        self._training = None
        profiler, detector = training
        with profiler.session.contain("restoring what was replaced"):
            self.replaced.restore()
        detector.remove()
        self._end_exclusion(error)
        if error is None and not profiler.session.steps.number:
            log.warning("stepscope: %s", _NO_STEP)
        profiler.session.finish(error)

    def warn_of_no_training(self) -> None:
        """Warn that the framework ended without beginning to train."""
        if self._prototype.config.enabled and self.profiler is None:
            log.warning("stepscope: %s", _NO_STEP)

    def _around_excepthook(self, before: Callable[..., Any]) -> Callable[..., Any]:
        def on_uncaught(kind: object, error: BaseException, traceback: object) -> None:
            self.finish(error)
            before(kind, error, traceback)

        return on_uncaught

    # -- what the framework tells ---------------------------------------------------------------

    def forward(self, batch: Any = None) -> None:
        """Begin the forward phase: a batch has come, this one or the oldest that was fetched."""
        if self._training is None:
            return
        if self._excluded is not None:
            self.resume_steps()
        self.is_in_step = True
        core = self._training.profiler.session.steps
        core.note(ENTER, FORWARD)
        if batch is not None:
            core.offer(work_of(batch))
        elif self._fetched is not None:
            core.offer(self._fetched.popleft() if self._fetched else UNKNOWN)

    def log_loss(self, loss: object) -> None:
        """Note what the framework logs as the loss, if it is a number."""
        if self._training is not None and isinstance(loss, int | float):
            self._training.profiler.count(loss=loss)

    def forget_batches(self) -> None:
        """Drop batches that were fetched and will not be used."""
        if self._fetched is not None:
            self._fetched.clear()

    def phase(self, name: str) -> None:
        """Begin a phase; it ends with the next one or with `leave_phase`."""
        if self._training is not None:
            self._training.detector.enter(name)

    def leave_phase(self) -> None:
        """End the open phase."""
        if self._training is not None:
            self._training.detector.leave()

    def step_ended(self) -> bool:
        """End the step; returns whether the training should end with it (`max_steps`)."""
        if self._training is None:
            return False
        if self._excluded is not None:
            self.resume_steps()
        profiler, detector = self._training
        self.is_in_step = detector.has_stepped = False
        profiler.step()
        return profiler.config.max_steps > 0 and profiler.should_stop

    def suspend_steps(self, kind: str) -> None:
        """Exclude what follows, such as an evaluation, from the steps until `resume_steps`.

        In the middle of a step, it becomes a phase of that step.
        """
        if self._training is None or self.excluded == kind:
            return
        self.resume_steps()
        self.leave_phase()
        profiler, detector = self._training
        context = profiler.phase(kind) if self.is_in_step else profiler.outside_steps(kind)
        context.__enter__()
        self._excluded = (kind, context)
        detector.is_excluded = True

    def resume_steps(self) -> None:
        """Resume the steps."""
        self._end_exclusion(None)

    @property
    def excluded(self) -> str:
        """What is currently excluded from the steps; empty for nothing."""
        return self._excluded[0] if self._excluded is not None else ""

    @property
    def is_in_phase(self) -> bool:
        """Whether a phase is open."""
        return self._training is not None and self._training.detector.is_in_phase

    def restart_step(self) -> None:
        """Restart the step: what came since the last one belongs to no step."""
        if self._training is not None and not self.is_in_step:
            self._training.profiler.session.restart_step()

    def _end_exclusion(self, error: BaseException | None) -> None:
        excluded, self._excluded = self._excluded, None
        if excluded is None:
            return
        if self._training is not None:
            self._training.detector.is_excluded = False
        kind = type(error) if error is not None else None
        try:
            excluded[1].__exit__(kind, error, None)
        except BaseException as raised:
            if raised is not error:
                raise

    # -- what the detector asks and reports ------------------------------------------------------

    def wants_batch(self, iterator: Any) -> bool:
        """Decide whether to time a fetch. One from the training's data ends an exclusion."""
        return self._wants_wait(getattr(iterator, "_dataset", None))

    def wants_workers(self, data: Any, *, is_start: bool) -> bool:
        """Decide whether to time a start or an end of workers, as a fetch."""
        return (is_start or self._excluded is None) and self._wants_wait(data)

    def _wants_wait(self, data: Any) -> bool:
        if self._data is not None and id(data) != self._data:
            return False
        if self.excluded == EVALUATION or (self.excluded and self.is_in_step):
            return False
        self.resume_steps()
        return True

    def batch_came(self, iterator: Any, batch: Any) -> None:  # noqa: ARG002
        """Remember the work of a batch; the framework says where its forward pass begins."""
        if self._fetched is not None:
            self._fetched.append(work_of(batch))


class CallbackBase:
    """Base of the callbacks of all frameworks: their options, and the run that they record.

    Args:
        profiler: A `Profiler` that was not started, or a `CaptureConfig`.
        **options: The options as keywords instead, as for `Profiler`.

    Raises:
        ConfigError: An option is invalid.
        UsageError: Both a profiler and options are given.
    """

    def __init__(self, profiler: Profiler | CaptureConfig | None = None, **options: Any) -> None:
        super().__init__()
        if not isinstance(profiler, Profiler):
            profiler = Profiler(profiler, **options)
        elif options:
            raise UsageError("give either a Profiler or options, not both")
        self._recorder = TrainingRecorder(profiler)

    @classmethod
    def from_args(
        cls: type[_Callback], args: Any, *, dialect: str | None = None, **more: Any
    ) -> _Callback:
        """Create one from parsed arguments, like `Profiler.from_args`.

        It does nothing if they do not ask for a recording.
        """
        return cls(Profiler.from_args(args, dialect=dialect, **more))

    @property
    def profiler(self) -> Profiler | None:
        """The profiler of the current or last training; None before the first."""
        return self._recorder.profiler

    @property
    def run_path(self) -> Path | None:
        """The run directory of that training."""
        return self.profiler.run_path if self.profiler is not None else None
