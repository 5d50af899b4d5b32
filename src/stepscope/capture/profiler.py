"""The profiler that a training loop holds: steps, phases, and windows by schedule."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.session import CaptureSession
from stepscope.capture.together.holder import ProcessClaim
from stepscope.capture.together.ranks import RankIdentity, records
from stepscope.errors import UsageError
from stepscope.run.layout import RunLayout

_Batch = TypeVar("_Batch")


class _End:
    """Stands for the batch that does not come."""


_END = _End()


class Profiler:
    """Records every step's time, and chosen steps in full detail, into a run directory.

    Use it around the training loop, either with `watch`:

        with stepscope.Profiler(output_dir="profiles") as profiler:
            for batch in profiler.watch(loader):
                train_step(batch)

    or by calling `step()` at the end of each iteration, as with torch.profiler. What goes wrong
    inside the capture is written to the manifest and to the log named "stepscope"; it never
    reaches the training. Only wrong options and a second profiler raise, and only at the start.

    Args:
        config: The options; or give them as keywords.
        identity: Who this process is in the job, where somebody knows better than torch and the
            launcher's variables.
        **options: Fields of `CaptureConfig`.

    Attributes:
        config: The options.
        watch_ends_steps: Whether `watch` ends steps by counting batches. A door that ends them
            where a framework's engine does sets it to False.
        gives_way: Called with another profiler that is about to start in this process: it ends
            this one. None: the other is refused.

    Raises:
        ConfigError: An option cannot work.
    """

    def __init__(
        self,
        config: CaptureConfig | None = None,
        *,
        identity: RankIdentity | None = None,
        **options: Any,
    ) -> None:
        if config is not None and options:
            raise UsageError("give Profiler either a config or options, not both")
        if config is None:
            config = _config_of(options)
        self.config = config
        self.watch_ends_steps = True
        self.gives_way: Callable[[Profiler], object] | None = None
        self._session = CaptureSession(config, identity)
        self._session.profiler = self
        self._stepped_in_watch = False
        self._watch_depth = 0

    def __copy__(self) -> Profiler:
        return self

    def __deepcopy__(self, _: dict[int, Any]) -> Profiler:
        # Torch serves one profiler in a process, and what holds this one may well be copied.
        return self

    def __getstate__(self) -> dict[str, Any]:
        # In another process it is one that has not been started.
        session = CaptureSession(self.config, self._session.given_identity)
        return {**self.__dict__, "_session": session, "_stepped_in_watch": False, "_watch_depth": 0}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._session = CaptureSession(self.config, self._session.given_identity)
        self._session.profiler = self

    def __enter__(self) -> Profiler:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._session.finish(error)

    def start(self) -> None:
        """Begin the capture: make the run's directory and open step 0.

        Raises:
            NestedProfilerError: Another profiler is recording in this process.
        """
        self._session.start()

    def stop(self) -> None:
        """End the capture: save the window that is open and close the files."""
        self._session.finish(None)

    def step(self, *, tokens: int | None = None, samples: int | None = None) -> None:
        """End the step that is going on and begin the next one.

        Args:
            tokens: Tokens processed in the step that ends.
            samples: Samples processed in the step that ends.
        """
        self._stepped_in_watch = True
        if not self._session.is_on:
            self._session.steps.number += 1
            self._session.tidy()
            return
        with self._session.contain("ending a step"):
            self.count(tokens=tokens, samples=samples)
            self._session.steps.advance()

    def watch(self, loader: Iterable[_Batch], *, batches_per_step: int = 1) -> Iterator[_Batch]:
        """Iterate over `loader`, timing the wait for each batch and ending a step with each.

        The wait for a batch belongs to the step that uses it. Time between two loops (an
        evaluation, say) belongs to no step. The iteration ends early at `max_steps`. From the
        first call of `step()` in a loop on, the loop ends its steps itself. A loop inside a loop
        is part of the outer one's step.

        Args:
            loader: Any iterable; a DataLoader as a rule.
            batches_per_step: Batches to a step, as with gradient accumulation; 0 where the loop
                calls `step()` itself from the start.

        Yields:
            The batches, unchanged.
        """
        if self._watch_depth:
            yield from loader
            return
        self._watch_depth += 1
        try:
            yield from self._watch(loader, batches_per_step)
        finally:
            self._watch_depth -= 1

    def _watch(self, loader: Iterable[_Batch], batches_per_step: int) -> Iterator[_Batch]:
        iterator: Iterator[_Batch] | None = None
        steps_itself = batches_per_step < 1 or not self.watch_ends_steps
        batches = 0
        if self._session.is_on:
            with self._session.contain("beginning a loop"):
                self._session.steps.begin_afresh()
        while not self.should_stop:
            self._stepped_in_watch = False
            started_ns = time.perf_counter_ns()
            with self._session.steps.fetching():
                if iterator is None:
                    iterator = iter(loader)
                batch = next(iterator, _END)
            if isinstance(batch, _End):
                break
            self._session.steps.batch_came(time.perf_counter_ns() - started_ns)
            try:
                yield batch
            except GeneratorExit:
                with self._session.contain("leaving the loop"):
                    if not self._stepped_in_watch:
                        self._session.steps.break_off()
                raise
            batches += 1
            steps_itself = steps_itself or self._stepped_in_watch or not self.watch_ends_steps
            if not steps_itself and batches % batches_per_step == 0:
                if self._session.is_on:
                    with self._session.contain("ending a step"):
                        self._session.steps.advance()
                else:
                    self._session.steps.number += 1
        # The last batches may be too few for a whole step, and are one all the same.
        if self._session.is_on and not steps_itself and batches % batches_per_step:
            with self._session.contain("ending a step"):
                self._session.steps.advance()
        if self._session.is_on:
            with self._session.contain("leaving the loop"):
                self._session.steps.leave_loop()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Name a part of the step: it is timed in the step record and marked in the trace.

        Phases may lie inside each other. Only the training thread's phases are timed.
        """
        phases = self._session.steps.phases
        if phases is None:
            with self._session.steps.phase(name):
                yield
            return
        with self._session.contain("listening to torch"):
            phases.watch.stand_back()
        try:
            with self._session.steps.phase(name):
                yield
        finally:
            with self._session.contain("listening to torch"):
                phases.watch.come_back()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time inside as waiting for the step's batch, if it ends without an error."""
        with self._session.steps.waiting():
            yield

    @contextlib.contextmanager
    def aside(self, kind: str) -> Iterator[None]:
        """Leave what is done inside out of the steps, such as an evaluation between two of them.

        The step record gets a line of its own for it: of this kind, with its duration and the
        number of the step that follows, which is counted on. The step that is going on begins
        anew at the end, so that what came before in it belongs to no step either. Steps that are
        ended inside do not count, and one inside another is a part of it.

        Args:
            kind: What it is, such as "evaluation" or "checkpoint"; not "train".
        """
        with self._session.steps.aside(kind), self._session.steps.range(kind):
            yield

    def restart_step(self) -> None:
        """Begin the step that is going on anew: what came before belongs to no step."""
        if self._session.is_on:
            with self._session.contain("beginning a step anew"):
                self._session.steps.begin_afresh()

    def trigger(
        self, *, steps: int | None = None, ranks: str = "", with_memory: bool = False
    ) -> None:
        """Ask for a window as soon as it can be, on all ranks alike. Returns at once.

        Args:
            steps: Steps to record; None for as many as the option `active`.
            ranks: Which ranks record it, as the option `ranks`; empty for those that record the
                schedule's windows.
            with_memory: Take a memory snapshot as well.
        """
        if self._session.is_on and self._session.requests is not None:
            with self._session.contain("asking for a window"):
                self._session.requests.ask("code", steps or 0, ranks, with_memory=with_memory)

    def snapshot(self, reason: str = "code") -> Path | None:
        """Write the CUDA allocator's state and history now.

        Returns:
            The file, or None where there is no CUDA, or it could not be written.
        """
        path: Path | None = None
        if self._session.is_on and self._session.memory is not None:
            with self._session.contain("taking a memory snapshot"):
                path = self._session.memory.snapshot(reason)
        return path

    def add_text(self, kind: str, name: str, text: str) -> Path | None:
        """Put a text into the rank's folder, listed in its manifest; a newer one replaces an older.

        Args:
            kind: What it is, in a word.
            name: The file's name.
            text: What it says.

        Returns:
            The file, or None where nothing is recorded or it could not be written.
        """
        path: Path | None = None
        if self._session.is_on and self._session.journal is not None:
            with self._session.contain("adding a file"):
                path = self._session.journal.add_text(kind, Path(name).name, text)
        return path

    def before_end(self, function: Callable[[], object]) -> None:
        """Have a function called when the capture ends, while it can still be added to."""
        self._session.before_end.append(function)

    def count(self, *, tokens: int | None = None, samples: int | None = None) -> None:
        """Add to the work done in the step that is going on."""
        if self._session.is_on and self._session.steps.recorder is not None:
            with self._session.contain("counting work"):
                self._session.steps.recorder.count(tokens, samples)

    def mark(self, kind: str) -> None:
        """Say of what kind the step that is going on is, such as "evaluation" or "checkpoint"."""
        if self._session.is_on and self._session.steps.recorder is not None:
            with self._session.contain("marking a step"):
                self._session.steps.recorder.mark(str(kind))

    @classmethod
    def running(cls) -> Any:
        """The profiler that records in this process; None where there is none."""
        return getattr(ProcessClaim.holder(), "profiler", None)

    @property
    def says_where(self) -> bool:
        """Whether the capture ends with a line that says where the run is; it does as a rule."""
        return self._session.says_where

    @says_where.setter
    def says_where(self, says: bool) -> None:
        self._session.says_where = says

    @property
    def records_windows(self) -> bool:
        """Whether this is one of the ranks that record windows, and the capture is going on."""
        return self._session.is_on and records(self.config.ranks, self._session.identity)

    @property
    def detail_step(self) -> int:
        """The step over which detailed counters run: one outside windows, if there is one."""
        return self.config.detail_step

    @property
    def should_stop(self) -> bool:
        """Whether `max_steps` steps have ended."""
        return 0 < self.config.max_steps <= self._session.steps.number

    @property
    def step_number(self) -> int:
        """Number of the step that is going on, counted from 0."""
        return self._session.steps.number

    @property
    def is_recording(self) -> bool:
        """Whether a window is being recorded."""
        return self._session.steps.recording_index is not None

    @property
    def run_path(self) -> Path | None:
        """The run's directory, once the capture has started; None if it could not be made."""
        return self._session.journal.layout.root if self._session.journal is not None else None

    @property
    def rank_path(self) -> Path | None:
        """This rank's folder in the run's directory; None as for `run_path`."""
        path = self.run_path
        return RunLayout(path).rank(self._session.identity.rank).root if path is not None else None


def _config_of(options: dict[str, Any]) -> CaptureConfig:
    try:
        return CaptureConfig(**options)
    except TypeError as error:
        unknown = [name for name in options if name not in CaptureConfig.__dataclass_fields__]
        if not unknown:
            raise
        known = ", ".join(CaptureConfig.__dataclass_fields__)
        raise UsageError(f"unknown option {unknown[0]!r}: the options are {known}") from error
