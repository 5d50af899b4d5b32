"""Runs a command and samples the hardware meanwhile."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from stepscope.adapters.options.dialects import find_dialect
from stepscope.adapters.options.settings import resolve
from stepscope.adapters.script.launch import run_command, startable
from stepscope.capture.options.option import parse_size
from stepscope.errors import UsageError
from stepscope.monitor.columns import DEFAULT_COLUMNS, parse_columns
from stepscope.monitor.recorder import Recorder, RecordingJob
from stepscope.monitor.sampler import Watched
from stepscope.run.layout import METRICS_FILE, run_name


@dataclass(frozen=True)
class WatchedCommand:
    """A command, and how to watch it.

    Attributes:
        words: The command.
        columns: Columns by nvidia-smi's names; None: those of a run's `metrics.csv`.
        interval_s: Seconds between samples.
        ids: GPUs; empty for those that are visible.
        file: Where the samples go; None: into a new folder in the directory of runs.
        max_bytes: Maximum size of the file, such as "64MiB".
        output_dir: The directory of runs; None: the one configured by environment or
            pyproject.toml.
    """

    words: tuple[str, ...]
    columns: str | None = None
    interval_s: float = 1.0
    ids: tuple[str, ...] = ()
    file: Path | None = None
    max_bytes: str = "64MiB"
    output_dir: Path | None = None


def run_watched(command: WatchedCommand) -> tuple[int, Path]:
    """Run a command, with a recorder in a thread of this process.

    Returns:
        The command's exit code, and the file of metrics.

    Raises:
        UsageError: The file cannot be written, or the command cannot be started.
    """
    try:
        most_bytes = parse_size(command.max_bytes)
    except ValueError as error:
        raise UsageError(f"--max-bytes={command.max_bytes}: not {error}") from None
    words = startable(command.words)
    # A command that cannot be started leaves no folder with metrics of nothing.
    if shutil.which(words[0]) is None:
        raise UsageError(f"{words[0]}: cannot be started: no such program, or not executable")
    path = command.file or _file_of_its_own(command.output_dir)
    columns = DEFAULT_COLUMNS if command.columns is None else parse_columns(command.columns)
    job = RecordingJob(
        str(path),
        Watched(os.getpid(), is_root=False, ids=command.ids),
        command.interval_s,
        most_bytes,
        tuple(column.name for column in columns),
    )
    try:
        recorder = Recorder(job)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from error
    with recorder.in_thread():
        code = run_command(words, dict(os.environ))
    return code, path


def runs_folder(output_dir: Path | None) -> Path:
    """The directory of runs: the one given, or the configured one."""
    given = {} if output_dir is None else {"output_dir": (str(output_dir), "--output-dir")}
    return Path(resolve(find_dialect("native"), given).value("output_dir"))


def _file_of_its_own(output_dir: Path | None) -> Path:
    return runs_folder(output_dir) / run_name(time.time_ns(), os.getpid()) / METRICS_FILE
