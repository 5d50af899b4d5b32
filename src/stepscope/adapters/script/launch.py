"""Runs a command so that the trainings below it are recorded without changing them."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from stepscope._package import IMPORT_ROOT, PACKAGE
from stepscope.adapters.options.settings import Settings
from stepscope.errors import StepscopeError, UsageError
from stepscope.monitor.processes import is_running
from stepscope.run.figures import plural
from stepscope.run.helper_processes import environment_of
from stepscope.run.layout import WINDOW_FILE, RankLayout, RunLayout
from stepscope.run.manifest import EXIT, RankManifest, read_rank, write_record
from stepscope.run.step_record import ITERATION, OPTIMIZER_STEP, complete_steps, read_steps

BOOTSTRAP = PACKAGE / "adapters" / "script" / "bootstrap"
_STEP_UNITS = {
    "optimizer": OPTIMIZER_STEP,
    "iteration": ITERATION,
    "batch": ITERATION,
    "forward": ITERATION,
}
"""What ends a step, to the unit of a step."""
_NO_PROGRAM = (errno.ENOENT, errno.EACCES, errno.ENOEXEC)
_FORWARDED = ("SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")


Runner = Callable[[Sequence[str], dict[str, str]], int]


@dataclass(frozen=True)
class Companion:
    """A module that joins the recording in each process that imports torch.

    Attributes:
        module: Its full name. Its function `join(recorder, request)` is called with the
            `ScriptRecorder` once the hooks are installed.
        at_start: Full name of a module whose function `begin(request)` is called at the start of
            each Python process, whether it imports torch or not. If that fails, the process ends.
    """

    module: str
    request: Mapping[str, Any]
    at_start: str = ""


@dataclass(frozen=True)
class Launched:
    """The outcome of a command.

    Attributes:
        exit_code: Its exit code; 128 plus the signal number if a signal ended it.
        batches_per_step: Number of batches that most steps trained on, the largest of all
            processes'; 0 where no DataLoader brought them.
        ranks: Process ID to rank, for each process that trained.
        members: Run directory to the ranks that wrote into it.
        uses_ray: Whether a process that imported torch had imported Ray before.
    """

    exit_code: int
    runs: tuple[Path, ...]
    imported_torch: bool
    batches_per_step: int
    problems: tuple[str, ...]
    ranks: Mapping[int, int] = field(default_factory=dict)
    members: Mapping[Path, tuple[int, ...]] = field(default_factory=dict)
    has_learned: bool = False
    uses_ray: bool = False


def launch(
    command: Sequence[str],
    settings: Settings,
    step_on: str = "optimizer",
    memray: Mapping[str, object] | None = None,
    companion: Companion | None = None,
    runner: Runner | None = None,
) -> Launched:
    """Run a command and wait for it; signals are passed on to it.

    Args:
        memray: How processes that import torch should track their memory with memray; None to skip
            this.
        companion: What else joins the recording in each process; None for nothing.
        runner: Runs a command in an environment and returns its exit code; `run_command` if None.

    Raises:
        UsageError: The program cannot be started.
        ConfigError: Options contradict each other.
    """
    config = settings.config(enabled=True, step_unit=_STEP_UNITS[step_on])
    options = {name: one.value for name, one in settings.settings.items() if one.option.is_field}
    # The script may change its working directory before it begins to train.
    options |= {
        "enabled": True,
        "auto_phases": False,  # the hooks that find the steps also time the phases
        "step_unit": config.step_unit,
        "output_dir": str(Path(config.output_dir).absolute()),
    }
    if config.tensorboard_dir:
        options["tensorboard_dir"] = str(Path(config.tensorboard_dir).absolute())
    with (
        no_empty_folder_left(Path(options["output_dir"])),
        tempfile.TemporaryDirectory(prefix="stepscope-") as notes,
    ):
        request = {
            "options": options,
            "step_on": step_on,
            "notes": notes,
            "root": str(IMPORT_ROOT),
            "python": list(sys.version_info[:2]),
            "memray": memray,
            "companion": None if companion is None else dataclasses.asdict(companion),
        }
        environment = environment_of(BOOTSTRAP)
        environment["STEPSCOPE_LAUNCH"] = json.dumps(request)
        code = (runner or run_command)(command, environment)
        return _launched(code, Path(notes))


@contextlib.contextmanager
def no_empty_folder_left(output: Path) -> Iterator[None]:
    """Remove the folder of runs at the end if it was created meanwhile, and is empty.

    So are those above it.
    """
    missing = [folder for folder in (output, *output.parents) if not folder.exists()]
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # it was never created, or is not empty
            for folder in missing:
                folder.rmdir()


def startable(command: Sequence[str], directory: Path | None = None) -> tuple[str, ...]:
    """The command, preceded by this Python if it is a script that cannot be started directly."""
    first = Path(directory or "", command[0])
    if first.suffix == ".py" and first.is_file() and shutil.which(command[0]) is None:
        return (sys.executable, *command)
    return tuple(command)


def why_not_started(program: str, error: OSError, directory: Path | None = None) -> str:
    """Why a program cannot be started, and what to do if it is a file that something else runs."""
    reason = f"{program}: cannot be started: {error.strerror or error}"
    if error.errno not in _NO_PROGRAM or not Path(directory or "", program).is_file():
        return reason
    return f"{program}: a file, but not a program: put what runs it first, as in bash {program}"


def run_command(command: Sequence[str], environment: dict[str, str]) -> int:
    """Run a command and wait for it; signals to this process are passed on to it.

    Returns:
        Its exit code; 128 plus the signal number if a signal ended it.
    """
    try:
        child = subprocess.Popen(list(command), env=environment)
    except OSError as error:
        raise UsageError(why_not_started(command[0], error)) from None

    def pass_on(number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(number)

    with passing_signals_on(pass_on):
        while True:
            try:
                code = child.wait()
                break
            except KeyboardInterrupt:
                continue
    return 128 - code if code < 0 else code


@contextlib.contextmanager
def passing_signals_on(
    pass_on: Callable[[int], None], *, shares_terminal: bool = True
) -> Iterator[None]:
    """While a child runs, pass signals to this process on to it, by a function that must not raise.

    Ctrl-C at a terminal that it shares reaches it directly.
    """

    def forward(number: int, _: FrameType | None) -> None:
        pass_on(number)

    def interrupt(number: int, frame: FrameType | None) -> None:
        # A terminal sends Ctrl-C to the whole group, including the child.
        if not shares_terminal or not _is_in_foreground():
            forward(number, frame)

    before = {}
    for name in _FORWARDED:
        number = getattr(signal, name, None)
        if number is not None:
            before[number] = signal.signal(number, forward)
    before[signal.SIGINT] = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_in_foreground() -> bool:
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _launched(exit_code: int, folder: Path) -> Launched:
    notes = []
    for path in sorted(folder.glob("*.json")):
        with contextlib.suppress(OSError, ValueError):
            notes.append(json.loads(path.read_bytes()))
    for note in notes:
        _close(note, exit_code)
    runs = {Path(note["run"]) for note in notes if note["run"]}
    members = {
        run: tuple(sorted(note["rank"] for note in notes if note["run"] == str(run)))
        for run in runs
        if run.is_dir()
    }
    return Launched(
        exit_code,
        tuple(sorted(run for run in runs if run.is_dir())),
        bool(notes),
        max((note["batches_per_step"] for note in notes), default=0),
        tuple(sorted({note["problem"] for note in notes if note["problem"]})),
        {note["process_id"]: note["rank"] for note in notes if note["run"]},
        members,
        any(note.get("has_learned") for note in notes),
        any(note.get("uses_ray") for note in notes),
    )


def _close(note: dict[str, Any], exit_code: int) -> None:
    """Complete the manifest of a process that could not do so itself: it may have been killed."""
    if not note["run"] or note["rank"] is None:
        return
    known = exit_code if note["parent_id"] == os.getpid() else None
    with contextlib.suppress(OSError, StepscopeError, KeyboardInterrupt):
        close_manifest(RunLayout(Path(note["run"])).rank(note["rank"]), known)


_PATIENCE_S = 10.0
_PAUSE_S = 0.02


def close_manifest(rank: RankLayout, exit_code: int | None) -> None:
    """Note in the manifest how a process ended, where the process could not do so itself.

    Windows whose files another process is still making are waited for, a few seconds at most. A
    process that is still running is left alone.

    Args:
        exit_code: The exit code of its process, 128 plus the signal's number if a signal ended it;
            None if it is not known.

    Raises:
        OSError: The manifest cannot be written.
    """
    manifest = read_rank(rank.manifest)
    if manifest.state == "running":
        if is_running(manifest.process_id):
            return
        _wait_for_windows(rank, manifest)
        complete_steps(rank.steps)
        ended_steps = (one.step + 1 for one in read_steps(rank.steps)[0] if not one.is_partial)
        steps = max((manifest.steps, *ended_steps))
        after = f"after {plural(steps, 'step')}, before it could close the recording"
        ended = f"{_cause(exit_code)} {after}"
        closed = dataclasses.replace(manifest, state="stopped", ended=ended, steps=steps)
    elif manifest.state == "finished" and exit_code:
        ended = f"{manifest.ended}; then the process {_cause(exit_code)}"
        closed = dataclasses.replace(manifest, state="stopped", ended=ended)
    elif exit_code == 0 and manifest.ended.startswith(EXIT):
        # The script caught what `sys.exit` raised, and ended by itself.
        ended = f"finished after {plural(manifest.steps, 'step')}"
        closed = dataclasses.replace(manifest, state="finished", ended=ended)
    else:
        return
    write_record(rank.manifest, closed)


def _cause(exit_code: int | None) -> str:
    if exit_code is None:
        return "was killed or ended itself"
    if exit_code > 128:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(exit_code - 128).name}"
    return f"ended with exit code {exit_code}"


def _wait_for_windows(rank: RankLayout, manifest: RankManifest) -> None:
    """Wait until the processes that make the windows' files have left their results."""
    missing = [
        rank.window(window.index) / WINDOW_FILE
        for window in manifest.windows
        if window.state == "saving"
    ]
    deadline = time.monotonic() + _PATIENCE_S
    while not all(map(Path.exists, missing)) and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)
