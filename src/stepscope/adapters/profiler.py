"""The public profiler: the capture's, which can also be made from arguments and keeps layouts."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from stepscope.adapters.options.layouts import LAYOUTS, Destination, put_lone_file, put_snapshot
from stepscope.adapters.options.reading import settings_of, words_of
from stepscope.adapters.options.settings import Settings
from stepscope.capture import profiler as capture
from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.steps.work import Work
from stepscope.capture.together.ranks import RankIdentity
from stepscope.run.manifest import ArtifactRecord, WindowRecord

log = logging.getLogger("stepscope")


class Profiler(capture.Profiler):
    """Records every step's time, and chosen steps in full detail, into a run directory.

    `stepscope.capture.profiler.Profiler` has the description; this one can be made from arguments
    and puts files where another framework's guide promises them.

    Args:
        config: The options; or give them as keywords.
        layout: Name of a layout of files to keep beside the run; empty for none.
        words: What that layout's names are made of, such as {"model_name": "llama"}.
        identity: Who this process is in the job, where somebody knows better than torch and the
            launcher's variables.
        snapshot_path: Where the newest memory snapshot is put as well; None for nowhere.
        placed: Called with the files that the layout has put in place for a window.
        **options: Fields of `CaptureConfig`.
    """

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
        super().__init__(config, identity=identity, **options)
        self._layout = layout
        self._words = words or {}
        self._snapshot_path = Path(snapshot_path) if snapshot_path else None
        self._placed = placed
        self._newest_placed = -1
        self._overviews: list[Callable[[], str]] = []
        self._offered: Work | None = None
        self._counted: set[str] = set()

    def renewed(self, *, identity: RankIdentity | None = None, **changes: Any) -> Profiler:
        """A new profiler with the same options, not started.

        Args:
            identity: Who this process is, where that is known by now.
            **changes: Fields of `CaptureConfig` that shall be others.

        Raises:
            ConfigError: An option cannot work.
        """
        config = dataclasses.replace(self.config, **changes) if changes else self.config
        return Profiler(
            config,
            layout=self._layout,
            words=self._words,
            snapshot_path=self._snapshot_path,
            placed=self._placed,
            identity=identity or self._session.given_identity,
        )

    @classmethod
    def from_args(cls, args: Any, *, dialect: str | None = None, **more: Any) -> Profiler:
        """A profiler as the arguments want it; one that does nothing where they do not ask for it.

        Args:
            args: What argparse made of a parser that `add_arguments` was called with; or any
                namespace, mapping or dataclass that has a dialect's names.
            dialect: The dialect of `args`; needed where they did not come through `add_arguments`.
            **more: Fields of `CaptureConfig` that only code can give, or that code shall decide.

        Raises:
            ConfigError: An option cannot work.
            UsageError: The dialect is missing or unknown.
        """
        return cls.from_settings(settings_of(args, dialect), args, **more)

    @classmethod
    def from_settings(cls, settings: Settings, args: Any = None, **more: Any) -> Profiler:
        """A profiler of resolved settings; names in layouts are taken from `args`."""
        config = settings.config(**more)
        if config.enabled and settings.dialect.raises_max_steps:
            _raise_max_steps(args, settings, config)
        if config.enabled and config.memory_log:
            _show_memory_lines()
        return cls(
            config,
            layout=settings.dialect.layout,
            words=words_of(args),
            snapshot_path=settings.value("memory_snapshot_path"),
        )

    def start(self) -> None:
        """Begin the capture: make the run's directory and open step 0.

        Raises:
            NestedProfilerError: Another profiler is recording in this process.
        """
        running = capture.Profiler.running()
        if self.config.enabled and running is not None and running.gives_way is not None:
            running.gives_way(self)
        super().start()
        if self._session.journal is not None:
            self._session.journal.window_ready = self._put_in_place
            self._session.journal.file_ready = self._put_file_in_place

    def offer(self, work: Work) -> None:
        """Add to what a door knows of the work in the step that is going on.

        Where the loop itself counts samples or tokens in that step, its number holds.
        """
        self._offered = work if self._offered is None else self._offered + work

    def count(self, *, tokens: int | None = None, samples: int | None = None) -> None:
        """Add to the work done in the step that is going on."""
        if tokens is not None:
            self._counted.add("tokens")
        if samples is not None:
            self._counted.add("samples")
        super().count(tokens=tokens, samples=samples)

    def step(self, *, tokens: int | None = None, samples: int | None = None) -> None:
        """End the step that is going on and begin the next one.

        Args:
            tokens: Tokens processed in the step that ends.
            samples: Samples processed in the step that ends.
        """
        offered = self._offered
        if offered is not None:
            if tokens is None and "tokens" not in self._counted:
                tokens = offered.tokens
            if samples is None and "samples" not in self._counted:
                samples = offered.samples
        super().step(tokens=tokens, samples=samples)
        self._forget_work()

    def restart_step(self) -> None:
        """Begin the step that is going on anew: what came before belongs to no step."""
        super().restart_step()
        self._forget_work()

    @contextlib.contextmanager
    def aside(self, kind: str) -> Iterator[None]:
        """Leave what is done inside out of the steps; see `stepscope.capture.profiler`."""
        try:
            with super().aside(kind):
                yield
        finally:
            self._forget_work()

    def _forget_work(self) -> None:
        self._offered = None
        self._counted.clear()

    def add_overview(self, overview: Callable[[], str]) -> None:
        """Have a function asked for its words wherever a layout writes an overview of memory."""
        self._overviews.append(overview)

    def _put_in_place(self, window: WindowRecord) -> None:
        destination, folder = self._destination(window.index), self.rank_path
        if destination is None or folder is None or not self._layout:
            return
        if window.state in {"complete", "partial"}:
            self._newest_placed = max(self._newest_placed, window.index)
            with self._session.contain("putting files where the guide promises them"):
                files = LAYOUTS[self._layout](destination, folder, window)
                self._session.copy_beside(files)
                if self._placed is not None and files:
                    self._placed(files)

    def _put_file_in_place(self, record: ArtifactRecord) -> None:
        destination, folder = self._destination(), self.rank_path
        if destination is None or folder is None:
            return
        with self._session.contain("putting a file where the guide promises it"):
            lone = put_lone_file(self._layout, destination, record.kind, folder / record.path)
            self._session.copy_beside([lone] if lone is not None else [])
            if record.kind == "snapshot" and self._snapshot_path is not None:
                put_snapshot(self._snapshot_path, destination, folder / record.path)

    def _destination(self, window: int | None = None) -> Destination | None:
        if self.run_path is None:
            return None
        return Destination(
            self.run_path.parent,
            self._session.identity,
            self._words,
            tuple(self._overviews),
            is_newest=window is None or window >= self._newest_placed,
        )


def profiler_from_args(args: Any, *, dialect: str | None = None, **more: Any) -> Profiler:
    """The same as `Profiler.from_args`."""
    return Profiler.from_args(args, dialect=dialect, **more)


def _raise_max_steps(args: Any, settings: Settings, config: CaptureConfig) -> None:
    """Give the script the limit that the capture needs, where its own ends before a window does."""
    wanted = settings.value("max_steps")
    if config.max_steps == wanted:
        return
    log.warning(
        "stepscope: max_steps=%s is too small for one window: it becomes %s",
        wanted,
        config.max_steps,
    )
    name = next(flag.destination for flag in settings.dialect.flags if flag.option == "max_steps")
    if isinstance(args, dict):
        args[name] = config.max_steps
    elif hasattr(args, name) and not getattr(
        getattr(type(args), "__dataclass_params__", None), "frozen", False
    ):
        setattr(args, name, config.max_steps)


class _MemoryLines(logging.Filter):
    """Lets the lines about memory through, and warnings."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING or record.getMessage().startswith("[Step ")


def _show_memory_lines() -> None:
    """Show the lines about memory: whoever asked for them by a flag has set up no logging."""
    if not log.isEnabledFor(logging.INFO):
        log.setLevel(logging.INFO)
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.addFilter(_MemoryLines())
        log.addHandler(handler)
