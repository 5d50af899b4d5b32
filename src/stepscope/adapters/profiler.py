"""The public profiler: the capture's, plus construction from arguments and file layouts."""

from __future__ import annotations

import dataclasses
import importlib
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.capture import profiler as capture
from stepscope.capture.messages import say
from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.options.option import ConfigError
from stepscope.capture.ranks import RankIdentity
from stepscope.capture.steps.work import work_of
from stepscope.run.manifest import ArtifactRecord, WindowRecord

if TYPE_CHECKING:
    from stepscope.adapters.options.layouts import Destination
    from stepscope.adapters.options.settings import Settings

log = logging.getLogger("stepscope")

_DEEPSPEED = "stepscope.adapters.deepspeed"
"""What follows an engine, where options ask for it. It stands on this module."""


class Profiler(capture.Profiler):
    """Records the time of every step, and selected steps in full detail, into a run directory.

    Use it around the training loop, either with `watch`:

        with stepscope.Profiler(output_dir="profiles") as profiler:
            for batch in profiler.watch(loader):
                train_step(batch)

    or by calling `step()` at the end of each iteration, as with torch.profiler. `from_args` creates
    it from a script's parsed arguments. Errors inside the capture are written to the manifest and
    to the "stepscope" logger; they never reach the training. Only invalid options and a second
    profiler raise, and only at the start.

    To the capture's profiler, this class adds construction from arguments, and files where another
    framework's guide promises them.

    Args:
        config: The options. Pass either a config or keywords.
        layout: Name of a layout of files to keep beside the run; empty for none.
        words: Parts of that layout's names, such as {"model_name": "llama"}.
        identity: The rank of this process, if the caller knows it better than torch and the
            launcher's environment variables.
        snapshot_path: Where to write the newest memory snapshot as well, or None.
        placed: Called with the files that the layout has put in place for a window.
        **options: Fields of `CaptureConfig`.

    Raises:
        ConfigError: An option is invalid.
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
        self._has_placed = False
        self._printed_rows = 0

    def _renewed(self, *, identity: RankIdentity | None = None, **changes: Any) -> Profiler:
        """A new profiler with the same options, not started.

        Args:
            identity: The rank of this process, if it is known by now.
            **changes: Fields of `CaptureConfig` to change.

        Raises:
            ConfigError: An option is invalid.
        """
        config = dataclasses.replace(self.config, **changes) if changes else self.config
        profiler = Profiler(
            config,
            layout=self._layout,
            words=self._words,
            snapshot_path=self._snapshot_path,
            placed=self._placed,
            identity=identity or self.session.given_identity,
        )
        profiler.session.option_names = self.session.option_names
        return profiler

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
        from stepscope.adapters.options.settings import misspelled_variables

        if settings.asks_only_for_memory:
            more = {"enabled": True, "window_recorder": "none", **more}
        config = settings.config(**more)
        if not config.enabled:
            for line in settings.without_effect():
                say(line)
        if config.enabled:
            for line in misspelled_variables():
                log.warning("stepscope: %s", line)
        if config.enabled and settings.dialect.raises_max_steps:
            _raise_max_steps(args, settings, config)
        profiler = cls(
            config,
            layout=settings.dialect.layout,
            words=_words_of(args),
            snapshot_path=settings.value("memory_snapshot_path"),
        )
        profiler.session.option_names = settings.names
        profiler._printed_rows = settings.dialect.printed_rows
        if config.enabled and (config.deepspeed_flops or config.deepspeed_memory):
            importlib.import_module(_DEEPSPEED).follow_new_engines(profiler)
        return profiler

    def start(self) -> None:
        """Start the capture: create the run directory and open step 0.

        Raises:
            NestedProfilerError: Another profiler is recording in this process.
        """
        running = capture.running_profiler()
        gives_way = None if running is None else running.session.gives_way
        if self.config.enabled and gives_way is not None:
            gives_way(self)
        super().start()
        if self.session.journal is not None:
            self.session.journal.window_ready = self._put_in_place
            self.session.journal.file_ready = self._put_file_in_place
            if self._printed_rows:
                self.session.after_files.append(self._print_table)
        for function in self.session.after_start:
            with self.session.contain("calling functions at the start"):
                function()

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

    def _work_counter(self, loader: object) -> Callable[[Any], object] | None:
        # Without collation, what arrives may be one sample as well as many.
        if not getattr(loader, "_auto_collation", False):
            return None
        offer = self.session.steps.offer
        return lambda batch: offer(work_of(batch))

    def _put_in_place(self, window: WindowRecord) -> list[Path]:
        if not self._layout:
            return []
        from stepscope.adapters.options.layouts import LAYOUTS

        destination, folder = self._destination(window.index), self.session.rank_path
        if destination is None or folder is None:
            return []
        files: list[Path] = []
        if window.state in {"complete", "partial"}:
            self._newest_placed = max(self._newest_placed, window.index)
            self._make_room(destination)
            with self.session.contain("writing the files of the layout"):
                files = LAYOUTS[self._layout](destination, folder, window)
                self.session.copy_beside(files)
                if self._placed is not None and files:
                    self._placed(files)
        return files

    def _put_file_in_place(self, record: ArtifactRecord) -> None:
        if not self._layout and self._snapshot_path is None:
            return
        from stepscope.adapters.options.layouts import LONE_FILES, put_lone_file, put_snapshot

        destination, folder = self._destination(), self.session.rank_path
        if destination is None or folder is None:
            return
        if record.kind in LONE_FILES.get(self._layout, {}):
            self._make_room(destination)
        with self.session.contain("writing a file of the layout"):
            lone = put_lone_file(self._layout, destination, record.kind, folder / record.path)
            self.session.copy_beside([lone] if lone is not None else [])
            if record.kind == "snapshot" and self._snapshot_path is not None:
                put_snapshot(self._snapshot_path, destination, folder / record.path)

    def _make_room(self, destination: Destination) -> None:
        """Move the files of an earlier recording, before the first file of this one."""
        if self._has_placed:
            return
        self._has_placed = True
        with self.session.contain("moving the files of an earlier recording"):
            from stepscope.adapters.options.layouts import move_earlier

            for folder in move_earlier(self._layout, destination):
                if self.config.announce:
                    say(f"files of an earlier recording were moved to {folder}")

    def _destination(self, window: int | None = None) -> Destination | None:
        from stepscope.adapters.options.layouts import Destination

        if self.run_path is None:
            return None
        return Destination(
            self.run_path.parent,
            self.session.identity,
            self._words,
            tuple(self.session.overviews),
            is_newest=window is None or window >= self._newest_placed,
        )


def profiler_from_args(args: Any, *, dialect: str | None = None, **more: Any) -> Profiler:
    """Create a profiler from parsed arguments: `Profiler.from_args`, with its arguments and errors.

    args = stepscope.add_arguments(argparse.ArgumentParser()).parse_args()
    with stepscope.profiler_from_args(args) as profiler:
        ...
    """
    return Profiler.from_args(args, dialect=dialect, **more)


def head_of(table: str, rows: int) -> str:
    """The first rows of a table of operators, with its title, and how many were left out."""
    lines = table.splitlines()
    rule = next((at for at, line in enumerate(lines) if line and not line.strip("- ")), 0)
    body = lines[rule + 1 :]
    ends = next((at for at, line in enumerate(body) if not line.strip()), len(body))
    left_out = ends - rows
    more = [f"… {left_out} more"] if left_out > 0 else []
    return "\n".join([*lines[: rule + 1], *body[: min(rows, ends)], *more, *body[ends:]])


def _words_of(args: Any) -> dict[str, str]:
    """The script's names for its model and its training, if the arguments have them."""
    from stepscope.adapters.options.settings import values_of

    values = {} if args is None else values_of(args)
    return {name: str(values[name]) for name in ("model_name", "train_type") if values.get(name)}


def _raise_max_steps(args: Any, settings: Settings, config: CaptureConfig) -> None:
    """Raise the script's own limit if it would end before the first window does."""
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
