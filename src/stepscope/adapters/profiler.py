"""The profiler that a training loop holds: steps, phases, scheduled windows, and its options."""

from __future__ import annotations

import contextlib
import importlib
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from stepscope.capture.containment import attempt
from stepscope.capture.messages import print_lines
from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.options.option import ConfigError
from stepscope.capture.ranks import ProcessClaim, RankIdentity
from stepscope.capture.session import CaptureSession
from stepscope.capture.steps.loaders import (
    SeenLoader,
    has_workers,
    kept_iterator,
    taken_sampler_time,
    time_first_indices,
)
from stepscope.capture.steps.replacements import is_compiling
from stepscope.capture.steps.step_notes import Phase, Read
from stepscope.capture.steps.work import work_of
from stepscope.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from stepscope.adapters.options.settings import Settings

log = logging.getLogger("stepscope")

_DEEPSPEED = "stepscope.adapters.deepspeed"
"""What follows an engine, where options ask for it. It stands on this module."""

_CLOCKS_HOLD_NS = 100_000
"""So long after a step has ended, the readings of its clocks serve the wait that follows."""

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

    or by calling `step()` at the end of each iteration, as with torch.profiler. `from_args` creates
    it from a script's parsed arguments. Errors inside the capture are written to the manifest and
    to the "stepscope" logger; they never reach the training. Only invalid options and a second
    profiler raise, and only at the start.

    Args:
        config: The options. Pass either a config or keywords.
        layout: Name of a layout of files to keep beside the run, where another framework's guide
            promises them; empty for none.
        words: Parts of that layout's names, such as {"model_name": "llama"}.
        identity: The rank of this process, if the caller knows it better than torch and the
            launcher's environment variables.
        snapshot_path: Where to write the newest memory snapshot as well, or None.
        placed: Called with the files that the layout has put in place for a window.
        **options: Fields of `CaptureConfig`.

    Attributes:
        config: The options.
        session: What records, for integrations.

    Raises:
        ConfigError: An option is invalid.
    """

    _takes_over = True
    """Whether a recording from outside the script ends where this one starts."""

    def __init__(
        self,
        config: CaptureConfig | None = None,
        *,
        layout: str = "",
        words: dict[str, str] | None = None,
        identity: RankIdentity | None = None,
        snapshot_path: Path | str | None = None,
        placed: Callable[[list[Path]], object] | None = None,
        **options: Any,
    ) -> None:
        if config is not None and options:
            raise UsageError("give Profiler either a config or options, not both")
        if config is None:
            config = _config_of(options)
        self.config = config
        self._beside: dict[str, Any] = {
            "layout": layout,
            "words": words or {},
            "snapshot_path": Path(snapshot_path) if snapshot_path else None,
            "placed": placed,
        }
        self._record_with(CaptureSession(config, identity))
        self._watch_depth = 0
        self._loop_began = 0
        self._printed_rows = 0

    def _record_with(self, session: CaptureSession) -> None:
        self.session = session
        self._core = session.steps
        session.profiler = self
        if type(self).step is Profiler.step:
            self.step = self._core.end_step  # type: ignore[method-assign]  # one call less

    @classmethod
    def from_args(cls, args: Any, *, dialect: str | None = None, **more: Any) -> Profiler:
        """Create a profiler from parsed arguments.

        It does nothing if they do not ask for a recording. If options from `add_arguments` do not
        fit together, the process ends as argparse ends it: with a line, and exit code 2.

        Args:
            args: The result of a parser to which `add_arguments` was applied, or any namespace,
                mapping or dataclass that has a dialect's names.
            dialect: The dialect of `args`; required if they did not come from `add_arguments`.
            **more: Fields of `CaptureConfig` that only code can set, or that code should decide.

        Raises:
            ConfigError: An option is invalid, in arguments that did not come from `add_arguments`.
            UsageError: The dialect is missing or unknown.
        """
        from stepscope.adapters.options.settings import is_parsed, settings_of

        try:
            return cls._from_settings(settings_of(args, dialect), args, **more)
        except ConfigError as error:
            if not is_parsed(args):
                raise
            print(f"{Path(sys.argv[0]).name}: error: {error}", file=sys.stderr)  # noqa: T201
            raise SystemExit(2) from None

    @classmethod
    def _from_settings(cls, settings: Settings, args: Any = None, **more: Any) -> Profiler:
        """Create a profiler from resolved settings. `args` provides names for layouts."""
        from stepscope.adapters.options.settings import misspelled_variables, values_of

        if settings.asks_only_for_memory:
            more = {"enabled": True, "window_recorder": "none", **more}
        config = settings.config(**more)
        if not config.enabled:
            for line in settings.without_effect():
                print_lines(line)
        if config.enabled:
            for line in (*misspelled_variables(), *settings.overridden()):
                log.warning("stepscope: %s", line)
        if config.enabled and settings.dialect.raises_max_steps:
            _raise_max_steps(args, settings, config)
        # The script's names for its model and its training, if the arguments have them.
        values = {} if args is None else values_of(args)
        profiler = cls(
            config,
            layout=settings.dialect.layout,
            words={
                name: str(values[name]) for name in ("model_name", "train_type") if values.get(name)
            },
            snapshot_path=settings.value("memory_snapshot_path"),
        )
        profiler.session.option_names = settings.names
        profiler._printed_rows = settings.dialect.printed_rows
        if config.enabled and (config.deepspeed_flops or config.deepspeed_memory):
            importlib.import_module(_DEEPSPEED).follow_new_engines(profiler)
        return profiler

    def __copy__(self: _Own) -> _Own:
        return self

    def __deepcopy__(self: _Own, _: dict[int, Any]) -> _Own:
        # Torch allows one profiler per process, and whatever holds this one may be copied.
        return self

    def __getstate__(self) -> dict[str, Any]:
        # In another process this is a profiler that has not been started.
        state = {**self.__dict__, "_core": None, "_watch_depth": 0, "_loop_began": 0}
        state.pop("step", None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._record_with(self.session)

    def __enter__(self: _Own) -> _Own:
        self.start()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        self.session.finish(error)

    def start(self) -> None:
        """Start the capture: create the run directory and open step 0.

        Raises:
            NestedProfilerError: Another profiler is recording in this process.
        """
        session, running = self.session, running_profiler()
        gives_way = None if running is None else running.session.gives_way
        if self.config.enabled and self._takes_over and gives_way is not None:
            gives_way(self)
        session.start()
        if session.journal is not None and session.rank_path is not None:
            if self._beside["layout"] or self._beside["snapshot_path"]:
                from stepscope.adapters.options.layouts import Placing

                placing = Placing(session, session.rank_path, **self._beside)
                session.journal.window_ready = placing.put_window
                session.journal.file_ready = placing.put_file
            if self._printed_rows:
                session.after_files.append(self._print_table)
        for function in session.after_start:
            with session.contain("calling functions at the start"):
                function()
        for listener in on_start:
            with session.contain("announcing the start"):
                listener(self)

    def stop(self) -> None:
        """End the capture: save the open window and close the files."""
        self.session.finish(None)

    def step(self, *, tokens: int | None = None, samples: int | None = None) -> None:
        """End the current step and begin the next one.

        Args:
            tokens: Tokens processed in the step that ends.
            samples: Samples processed in the step that ends.
        """
        self._core.end_step(tokens=tokens, samples=samples)

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
        return self._watch(loader, batches_per_step)

    def _watch(
        self,
        loader: Iterable[_Batch],
        batches_per_step: int,
        ends_step: Callable[[], bool] | None = None,
    ) -> Iterator[_Batch]:
        """Iterate over `loader`; see `watch`.

        Args:
            ends_step: Whether the batch that was used ends a step, in place of `batches_per_step`;
                the work of all batches is counted then.
        """
        if self._watch_depth:
            yield from loader
            return
        core, session = self._core, self.session
        iterator: Iterator[_Batch] | None = None
        asks = ends_step is not None
        steps_itself = asks or batches_per_step < 1 or not session.watch_ends_steps
        batches = 0
        seen: SeenLoader | None = None
        looks, counts_work, is_quiet = True, False, False
        self._watch_depth += 1
        self._loop_began = core.number
        try:
            session.restart_step()
            while self.config.max_steps <= 0 or not self.should_stop:
                core.was_stepped = False
                starts_epoch, has_new_workers = iterator is None, False
                now_ns, begun = time.perf_counter_ns(), core.begun if is_quiet else None
                if begun is not None and now_ns - begun[0] < _CLOCKS_HOLD_NS:
                    wait = (None, now_ns, begun[2], begun[3])  # one call less, as in `end_step`
                else:
                    wait = core.begin_wait(is_own=True)
                try:
                    if iterator is None:
                        kept, started_ns = attempt(kept_iterator, loader), time.perf_counter_ns()
                        iterator = iter(loader)
                        made_ns = time.perf_counter_ns() - started_ns
                        has_new_workers = iterator is not kept and bool(
                            attempt(has_workers, iterator)
                        )
                        attempt(time_first_indices, iterator)
                        counts_work = asks or bool(attempt(self._counts_work, loader))
                    batch = next(iterator, _END)
                except BaseException:
                    core.end_wait(wait, counts=False, is_own=True)
                    raise
                if isinstance(batch, _End):
                    core.end_wait(wait, counts=False, is_own=True)
                    break
                read_ns, cpu_ns = core.end_wait(wait, is_own=True)
                if looks:
                    seen = core.see_loader(loader, iterator, read=Read(batch, read_ns, cpu_ns))
                    looks = seen is not None and seen.is_new
                elif seen is not None:
                    seen.batches += 1
                if starts_epoch:
                    sampler_ns = attempt(taken_sampler_time, iterator) or 0
                    core.add_loader_time(
                        epoch_start_ns=read_ns,
                        workers_ns=max(0, made_ns - sampler_ns) if has_new_workers else 0,
                        sampler_ns=sampler_ns,
                    )
                if counts_work:
                    core.offer(work_of(batch))
                try:
                    yield batch
                except GeneratorExit:
                    with session.contain("leaving the loop"):
                        if asks and (detector := core.detector) and detector.has_stepped:
                            core.end_step()  # left after its optimizer's step: a complete one
                        if not core.was_stepped:
                            core.leave_loop(is_broken_off=True)
                    raise
                batches += 1
                if ends_step is not None and not core.was_stepped and ends_step():
                    core.end_step()
                steps_itself |= core.was_stepped or not session.watch_ends_steps
                is_quiet = False
                if not steps_itself and batches % batches_per_step == 0:
                    core.end_step()
                    is_quiet = core.recording is None and core.detector is None
            # The last batches may not fill a step; they count as one all the same.
            if not steps_itself and batches % batches_per_step and core.is_on:
                core.end_step()
            if core.is_on:
                with session.contain("leaving the loop"):
                    core.leave_loop()
        finally:
            self._watch_depth -= 1

    def _counts_work(self, loader: object) -> bool:
        """Whether `watch` counts the work of this loader's batches."""
        # Without collation, what arrives may be one sample as well as many.
        return bool(getattr(loader, "_auto_collation", False))

    def phase(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Name a part of the step: it is timed in the step record and marked in the trace.

        Phases may nest. Only phases of the training thread are timed. Inside a function that
        torch.compile compiles, a phase is what `torch.profiler.record_function` is there: it breaks
        no graph, and is not timed.
        """
        import torch

        # Called here: the compiler must see that it is asked.
        if torch.compiler.is_dynamo_compiling():
            return torch.profiler.record_function(name)
        return Phase(self._core, name)

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
        if self._core.is_on and self.session.requests is not None:
            with self.session.contain("requesting a window"):
                from stepscope.run.triggers import Trigger, checked_details

                asked = checked_details(details)
                trigger = Trigger("code", steps or 0, ranks, with_memory, details=asked)
                self.session.requests.ask(trigger)

    def snapshot(self, reason: str = "code") -> Path | None:
        """Write the state and history of the CUDA allocator now.

        Returns:
            The file, or None if there is no CUDA or the file could not be written.
        """
        path: Path | None = None
        if self._core.is_on:
            with self.session.contain("taking a memory snapshot"):
                path = self.session.snapshot(reason)
        return path

    def count(
        self,
        *,
        tokens: int | None = None,
        samples: int | None = None,
        loss: float | None = None,
    ) -> None:
        """Add to the work done in the current step; does nothing inside a compiled function.

        Args:
            tokens: Tokens processed, beside those counted already.
            samples: Samples, likewise.
            loss: The loss, where the loop logs it: a number, as reading a tensor waits for the GPU.
        """
        if is_compiling():
            return
        if self._core.is_on:
            with self.session.contain("counting work"):
                self._core.count(tokens, samples)
                if loss is not None:
                    self._core.log_loss(loss)

    def mark(self, kind: str) -> None:
        """Set the kind of the current step, such as "evaluation" or "checkpoint".

        Does nothing inside a compiled function.
        """
        if is_compiling():
            return
        if self._core.is_on:
            with self.session.contain("marking a step"):
                self._core.mark(str(kind))

    @property
    def should_stop(self) -> bool:
        """Whether `max_steps` steps have ended; with `max_steps_per_loop`, in the last `watch`."""
        began = self._loop_began if self.config.max_steps_per_loop else 0
        return 0 < self.config.max_steps <= self._core.number - began

    @property
    def run_path(self) -> Path | None:
        """The run directory once the capture has started; None if it could not be created."""
        return self.session.journal.layout.root if self.session.journal is not None else None

    def _print_table(self) -> None:
        """Print the head of the table of operators of the newest window, as some guides do."""
        journal, folder = self.session.journal, self.session.rank_path
        if journal is None or folder is None or self.session.identity.rank:
            return
        for window in reversed(journal.windows):
            for item in window.artifacts:
                if item.kind == "key_averages" and item.path.endswith(".txt") and not item.problem:
                    print(head_of((folder / item.path).read_text("utf-8"), self._printed_rows))  # noqa: T201
                    return


on_start: list[Callable[[Profiler], object]] = []
"""Called with each profiler that has started in this process, whatever its thread."""


def running_profiler() -> Any:
    """The profiler that is recording in this process, or None."""
    return getattr(ProcessClaim.holder(), "profiler", None)


def _config_of(options: dict[str, Any]) -> CaptureConfig:
    try:
        return CaptureConfig(**options)
    except TypeError:
        check_names(options)
        raise


def check_names(options: Iterable[str], others: Iterable[str] = ()) -> None:
    """Refuse options that there are not, with a hint at the nearest one.

    Args:
        others: Further names that are understood.

    Raises:
        UsageError: There is no option of a name.
    """
    known = [*CaptureConfig.__dataclass_fields__, *others]
    unknown = next((name for name in options if name not in known), None)
    if unknown is not None:
        hint = did_you_mean(unknown, known, f"the options are {', '.join(known)}")
        raise UsageError(f"unknown option {unknown!r}: {hint}")


def head_of(table: str, rows: int) -> str:
    """The first rows of a table of operators, with its title, and how many were left out."""
    lines = table.splitlines()
    rule = next((at for at, line in enumerate(lines) if line and not line.strip("- ")), 0)
    body = lines[rule + 1 :]
    ends = next((at for at, line in enumerate(body) if not line.strip()), len(body))
    left_out = ends - rows
    more = [f"… {left_out} more"] if left_out > 0 else []
    return "\n".join([*lines[: rule + 1], *body[: min(rows, ends)], *more, *body[ends:]])


def _raise_max_steps(args: Any, settings: Settings, config: CaptureConfig) -> None:
    """Raise the script's own limit if it would end before the first window does."""
    wanted = settings.value("max_steps")
    if config.max_steps == wanted:
        return
    log.warning(
        "stepscope: %s is too small for one window: it becomes %s",
        settings.names.setting("max_steps", wanted),
        config.max_steps,
    )
    name = next(flag.destination for flag in settings.dialect.flags if flag.option == "max_steps")
    if isinstance(args, dict):
        args[name] = config.max_steps
    elif hasattr(args, name) and not getattr(
        getattr(type(args), "__dataclass_params__", None), "frozen", False
    ):
        setattr(args, name, config.max_steps)
