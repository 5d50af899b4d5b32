"""The profiler that a training loop holds: steps, phases, and scheduled windows."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.options.option import IN_CODE
from stepscope.capture.session import CaptureSession
from stepscope.capture.steps.attempt import attempt
from stepscope.capture.steps.loaders import (
    has_workers,
    kept_iterator,
    taken_sampler_time,
    time_first_indices,
)
from stepscope.capture.steps.phase_timer import Read
from stepscope.capture.steps.uncompiled import compiled_phase, is_compiling
from stepscope.capture.steps.work import Work
from stepscope.capture.together.holder import ProcessClaim
from stepscope.capture.together.ranks import RankIdentity, records
from stepscope.errors import UsageError
from stepscope.run.layout import RunLayout

_Batch = TypeVar("_Batch")
_Own = TypeVar("_Own", bound="Profiler")


class _End:
    """Marks the end of the loader."""


_END = _End()


class Profiler:
    """Records the time of every step, and selected steps in full detail, into a run directory.

    Use it around the training loop, either with `watch`:

        with stepscope.Profiler(output_dir="profiles") as profiler:
            for batch in profiler.watch(loader):
                train_step(batch)

    or by calling `step()` at the end of each iteration, as with torch.profiler. Errors inside the
    capture are written to the manifest and to the "stepscope" logger; they never reach the
    training. Only invalid options and a second profiler raise, and only at the start.

    Args:
        config: The options. Pass either a config or keywords.
        identity: The rank of this process, if the caller knows it better than torch and the
            launcher's environment variables.
        **options: Fields of `CaptureConfig`.

    Attributes:
        config: The options.
        watch_ends_steps: Whether `watch` ends a step after each batch. Integrations that end steps
            from a framework's engine set this to False.
        gives_way: Called with another profiler that is about to start in this process, and expected
            to end this one. None refuses the other profiler.
        option_names: What the options are called in messages.

    Raises:
        ConfigError: An option is invalid.
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
        self.option_names = IN_CODE
        self._session = CaptureSession(config, identity)
        self._session.profiler = self
        self._core = self._session.steps
        self._stepped_in_watch = False
        self._watch_depth = 0
        self._loop_began = 0

    def __copy__(self: _Own) -> _Own:
        return self

    def __deepcopy__(self: _Own, _: dict[int, Any]) -> _Own:
        # Torch allows one profiler per process, and whatever holds this one may be copied.
        return self

    def __getstate__(self) -> dict[str, Any]:
        # In another process this is a profiler that has not been started.
        session = CaptureSession(self.config, self._session.given_identity)
        fresh = {"_stepped_in_watch": False, "_watch_depth": 0, "_loop_began": 0}
        return {**self.__dict__, "_session": session, "_core": None, **fresh}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._session = CaptureSession(self.config, self._session.given_identity)
        self._session.profiler = self
        self._core = self._session.steps

    def __enter__(self: _Own) -> _Own:
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
        """Start the capture: create the run directory and open step 0.

        Raises:
            NestedProfilerError: Another profiler is recording in this process.
        """
        self._session.start()

    def stop(self) -> None:
        """End the capture: save the open window and close the files."""
        self._session.finish(None)

    def step(self, *, tokens: int | None = None, samples: int | None = None) -> None:
        """End the current step and begin the next one.

        Args:
            tokens: Tokens processed in the step that ends.
            samples: Samples processed in the step that ends.
        """
        self._stepped_in_watch = True
        core = self._core
        if not core.is_on:
            core.number += 1
            self._session.tidy()
            return
        try:
            core.end_step(tokens, samples)
        except RecursionError:
            # The loop called this with hardly any of Python's stack left.
            core.lost_ends += 1

    def watch(self, loader: Iterable[_Batch], *, batches_per_step: int = 1) -> Iterator[_Batch]:
        """Iterate over `loader`, time the wait for each batch, and end a step after each.

        The wait for a batch belongs to the step that uses the batch. Time between two loops (an
        evaluation, say) belongs to no step. The iteration ends early at `max_steps`. Once the loop
        calls `step()` itself, `watch` no longer ends steps. A nested `watch` is part of the outer
        loop's step.

        Args:
            loader: Any iterable, usually a DataLoader.
            batches_per_step: Batches per step, for gradient accumulation; 0 if the loop calls
                `step()` itself from the start.

        Yields:
            The batches, unchanged.
        """
        if self._watch_depth:
            yield from loader
            return
        self._watch_depth += 1
        self._loop_began = self._core.number
        try:
            yield from self._watch(loader, batches_per_step)
        finally:
            self._watch_depth -= 1

    def _watch(self, loader: Iterable[_Batch], batches_per_step: int) -> Iterator[_Batch]:
        core = self._core
        iterator: Iterator[_Batch] | None = None
        steps_itself = batches_per_step < 1 or not self.watch_ends_steps
        batches = 0
        if core.is_on:
            with self._session.contain("beginning a loop"):
                core.restart_step()
        while not self.should_stop:
            self._stepped_in_watch = False
            starts_epoch, has_new_workers = iterator is None, False
            fetch = core.begin_fetch()
            started_ns = time.perf_counter_ns()
            try:
                if iterator is None:
                    kept = attempt(kept_iterator, loader)
                    iterator = iter(loader)
                    made_ns = time.perf_counter_ns() - started_ns
                    has_new_workers = iterator is not kept and bool(attempt(has_workers, iterator))
                    attempt(time_first_indices, iterator)
                batch = next(iterator, _END)
            finally:
                read_ns, cpu_ns = core.end_fetch(fetch)
            if isinstance(batch, _End):
                break
            core.batch_came(loader, iterator, Read(batch, read_ns, cpu_ns))
            if starts_epoch:
                sampler_ns = attempt(taken_sampler_time, iterator) or 0
                core.add_loader_time(
                    epoch_start_ns=read_ns,
                    workers_ns=max(0, made_ns - sampler_ns) if has_new_workers else 0,
                    sampler_ns=sampler_ns,
                )
            self._batch_came(loader, batch)
            try:
                yield batch
            except GeneratorExit:
                with self._session.contain("leaving the loop"):
                    if not self._stepped_in_watch:
                        core.break_off()
                raise
            batches += 1
            steps_itself = steps_itself or self._stepped_in_watch or not self.watch_ends_steps
            if not steps_itself and batches % batches_per_step == 0:
                Profiler.step(self)
        # The last batches may not fill a step; they count as one all the same.
        if not steps_itself and batches % batches_per_step and core.is_on:
            Profiler.step(self)
        if core.is_on:
            with self._session.contain("leaving the loop"):
                core.leave_loop()

    def _batch_came(self, loader: object, batch: object) -> None:
        """Take notice of a batch that `watch` passes on."""

    def phase(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Name a part of the step: it is timed in the step record and marked in the trace.

        Phases may nest. Only phases of the training thread are timed. Inside a function that
        torch.compile compiles, a phase is what `torch.profiler.record_function` is there: it breaks
        no graph, and is not timed.
        """
        if is_compiling():
            return compiled_phase(name)
        return self._core.named_phase(name)

    def waiting(self) -> contextlib.AbstractContextManager[None]:
        """Count the time inside as waiting for the step's batch, unless it ends with an error."""
        return self._core.waiting()

    def add_wait(self, duration_ns: int) -> None:
        """Count time that has just passed as waiting for the step's batch.

        Args:
            duration_ns: How long.
        """
        self._core.add_wait(duration_ns)

    def leave_out(self, duration_ns: int) -> None:
        """Leave time that has just passed out of the open phases.

        Args:
            duration_ns: How long.
        """
        self._core.leave_out(duration_ns)

    def see_loader(self, *parts: object, read: Read | None = None) -> None:
        """Note the DataLoader that a batch came from; `watch` does it by itself.

        Args:
            parts: The DataLoader, its iterator, or both.
            read: How the batch was read; None if unknown.
        """
        self._core.see_loader(*parts, read=read)

    def loader_ends(self, iterator: object) -> None:
        """Measure a DataLoader's workers for the last time, before its iterator ends them.

        Args:
            iterator: The iterator.
        """
        self._core.loader_ends(iterator)

    def add_loader_time(
        self, *, epoch_start_ns: int = 0, workers_ns: int = 0, sampler_ns: int = 0
    ) -> None:
        """Note what parts of the wait were; see the fields of `StepRecord`.

        Args:
            epoch_start_ns: At the start of a DataLoader's iterator.
            workers_ns: Starting or ending its workers.
            sampler_ns: Waiting for the sampler's first indices.
        """
        self._core.add_loader_time(
            epoch_start_ns=epoch_start_ns, workers_ns=workers_ns, sampler_ns=sampler_ns
        )

    def note_training_work(self) -> None:
        """Note that the open phases contain a backward pass or an optimizer's step."""
        self._core.note_training_work()

    def note_exchanges(self) -> None:
        """Note that ranks exchange data one to one, as the stages of a pipeline do.

        They wait for each other by design, so that none of them is called late for it.
        """
        self._core.note_exchanges()

    def outside_steps(self, kind: str) -> contextlib.AbstractContextManager[None]:
        """Exclude work between two steps, such as an evaluation, from the step times.

        The step record gets a separate line of this kind, with its duration and the number of the
        step that follows. The current step restarts when the block ends, so what came before in it
        belongs to no step either. Steps that end inside the block do not count, and nested blocks
        are part of the outer one.

        Args:
            kind: What the work is, such as "evaluation" or "checkpoint"; not "train".
        """
        return self._core.outside_steps(kind)

    def restart_step(self, kind: str = "") -> None:
        """Restart the current step: what came before belongs to no step.

        Args:
            kind: What that was, such as "evaluation": the step record gets a separate line of this
                kind, with its duration and the number of the step. By default it gets none.
        """
        if self._core.is_on:
            with self._session.contain("restarting a step"):
                self._core.restart_step(kind)

    def trigger(
        self,
        *,
        steps: int | None = None,
        ranks: str = "",
        with_memory: bool = False,
        details: Iterable[str] = (),
    ) -> None:
        """Request a window as soon as possible, on all ranks alike. Returns at once.

        Args:
            steps: Number of steps to record; None for the option `active`.
            ranks: Ranks that record it, as in the option `ranks`; empty for those that record the
                scheduled windows.
            with_memory: Take a memory snapshot as well.
            details: Options to switch on for this window alone: some of "record_shapes",
                "profile_memory", "with_stack", "cuda_sync_events".
        """
        if self._core.is_on and self._session.requests is not None:
            with self._session.contain("requesting a window"):
                from stepscope.run.triggers import checked_details

                self._session.requests.ask(
                    "code",
                    steps or 0,
                    ranks,
                    with_memory=with_memory,
                    details=checked_details(details),
                )

    def snapshot(self, reason: str = "code") -> Path | None:
        """Write the state and history of the CUDA allocator now.

        Returns:
            The file, or None if there is no CUDA or the file could not be written.
        """
        path: Path | None = None
        if self._core.is_on:
            with self._session.contain("taking a memory snapshot"):
                path = self._session.snapshot(reason)
        return path

    def add_text(self, kind: str, name: str, text: str) -> Path | None:
        """Write a text file into the rank's folder and list it in the manifest.

        An existing file of the same name is replaced.

        Args:
            kind: The kind of file, in one word.
            name: The file name.
            text: The content.

        Returns:
            The file, or None if nothing is recorded or it could not be written.
        """
        path: Path | None = None
        if self._core.is_on and self._session.journal is not None:
            with self._session.contain("adding a file"):
                path = self._session.journal.add_text(kind, Path(name).name, text)
        return path

    def before_end(self, function: Callable[[], object]) -> None:
        """Call a function when the capture ends, while files can still be added to it."""
        self._session.before_end.append(function)

    def count(self, *, tokens: int | None = None, samples: int | None = None) -> None:
        """Add to the work done in the current step; does nothing inside a compiled function."""
        if is_compiling():
            return
        if self._core.is_on:
            with self._session.contain("counting work"):
                self._core.count(tokens, samples)

    def offer(self, work: Work) -> None:
        """Add what an integration knows about the work in the current step.

        If the loop itself counts samples or tokens in that step, the loop's number is used.
        """
        if self._core.is_on:
            with self._session.contain("counting work"):
                self._core.offer(work)

    def mark(self, kind: str) -> None:
        """Set the kind of the current step, such as "evaluation" or "checkpoint".

        Does nothing inside a compiled function.
        """
        if is_compiling():
            return
        if self._core.is_on:
            with self._session.contain("marking a step"):
                self._core.mark(str(kind))

    @classmethod
    def running(cls) -> Any:
        """The profiler that is recording in this process, or None."""
        return getattr(ProcessClaim.holder(), "profiler", None)

    @property
    def says_where(self) -> bool:
        """Whether the capture prints at its end where the run is, and what its steps show."""
        return self._session.says_where

    @says_where.setter
    def says_where(self, says: bool) -> None:
        self._session.says_where = says

    @property
    def records_windows(self) -> bool:
        """Whether this rank records windows and the capture is running."""
        return self._core.is_on and records(self.config.ranks, self._session.identity)

    @property
    def detail_step(self) -> int:
        """The step over which detailed counters run: outside any window if possible."""
        return self.config.detail_step

    @property
    def should_stop(self) -> bool:
        """Whether `max_steps` steps have ended; with `max_steps_per_loop`, in the last `watch`."""
        began = self._loop_began if self.config.max_steps_per_loop else 0
        return 0 < self.config.max_steps <= self._core.number - began

    @property
    def step_number(self) -> int:
        """Number of the current step, counted from 0."""
        return self._core.number

    @property
    def is_recording(self) -> bool:
        """Whether a window is being recorded."""
        return self._core.recording is not None

    @property
    def run_path(self) -> Path | None:
        """The run directory once the capture has started; None if it could not be created."""
        return self._session.journal.layout.root if self._session.journal is not None else None

    @property
    def rank_path(self) -> Path | None:
        """This rank's folder in the run directory, or None."""
        path = self.run_path
        return RunLayout(path).rank(self._session.identity.rank).root if path is not None else None


def _config_of(options: dict[str, Any]) -> CaptureConfig:
    try:
        return CaptureConfig(**options)
    except TypeError as error:
        unknown = [name for name in options if name not in CaptureConfig.__dataclass_fields__]
        if not unknown:
            raise
        import difflib  # for a mistake only

        known = list(CaptureConfig.__dataclass_fields__)
        near = difflib.get_close_matches(unknown[0], known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"the options are {', '.join(known)}"
        raise UsageError(f"unknown option {unknown[0]!r}: {hint}") from error
