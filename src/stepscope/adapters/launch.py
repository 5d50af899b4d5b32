"""Running a command so that the trainings below it are recorded, without a change to them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from stepscope.adapters.settings import Settings
from stepscope.errors import UsageError

BOOTSTRAP = Path(__file__).parent / "bootstrap"
STEP_UNITS = {"optimizer": "optimizer step", "iteration": "iteration"}
_FORWARDED = ("SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")


@dataclass(frozen=True)
class Launched:
    """What became of a command.

    Attributes:
        exit_code: Its exit code; 128 and the signal's number where a signal ended it.
        runs: The run directories that it left, in no order.
        imported_torch: Whether any process imported torch.
        batches_per_step: Greatest number of backward passes in a step, over all processes.
        problems: Why processes recorded nothing.
    """

    exit_code: int
    runs: tuple[Path, ...]
    imported_torch: bool
    batches_per_step: int
    problems: tuple[str, ...]


def launch(command: Sequence[str], settings: Settings, step_on: str = "optimizer") -> Launched:
    """Run a command and wait for it; signals are passed on to it.

    Args:
        command: Program and arguments.
        settings: The options of the recording.
        step_on: What ends a step: "optimizer" or "iteration".

    Raises:
        UsageError: The program cannot be started.
        ConfigError: Options cannot work together.
    """
    config = settings.config(enabled=True, step_unit=STEP_UNITS[step_on])
    options = {
        setting.option.field: setting.value
        for setting in settings.settings.values()
        if setting.option.field
    }
    # The script may change its folder before it begins to train.
    options |= {
        "enabled": True,
        "keep_local": True,  # for the report at the end
        "auto_phases": False,  # the hooks that find the steps tell the phases too
        "step_unit": config.step_unit,
        "output_dir": str(Path(config.output_dir).absolute()),
    }
    if config.tensorboard_dir:
        options["tensorboard_dir"] = str(Path(config.tensorboard_dir).absolute())
    with tempfile.TemporaryDirectory(prefix="stepscope-") as notes:
        wishes = {
            "options": options,
            "step_on": step_on,
            "notes": notes,
            "root": str(Path(__file__).resolve().parents[2]),
            "python": list(sys.version_info[:2]),
        }
        code = _run(command, _environment(wishes))
        return _launched(code, Path(notes))


def _environment(wishes: dict[str, Any]) -> dict[str, str]:
    environment = dict(os.environ)
    paths = [str(BOOTSTRAP), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    environment["STEPSCOPE_LAUNCH"] = json.dumps(wishes)
    return environment


def _run(command: Sequence[str], environment: dict[str, str]) -> int:
    try:
        child = subprocess.Popen(list(command), env=environment)
    except OSError as error:
        raise UsageError(f"{command[0]}: cannot be started: {error.strerror or error}") from None
    with _passing_signals_on(child):
        while True:
            try:
                code = child.wait()
                break
            except KeyboardInterrupt:
                continue
    return 128 - code if code < 0 else code


@contextlib.contextmanager
def _passing_signals_on(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """While the child runs, what is sent to this process is meant for it."""

    def forward(number: int, _: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(number)

    def interrupt(number: int, frame: FrameType | None) -> None:
        # A terminal sends Ctrl-C to the whole group, the child included.
        if not _is_in_foreground():
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
    runs = {Path(note["run"]) for note in notes if note["run"]}
    return Launched(
        exit_code,
        tuple(sorted(run for run in runs if run.is_dir())),
        bool(notes),
        max((note["batches_per_step"] for note in notes), default=0),
        tuple(sorted({note["problem"] for note in notes if note["problem"]})),
    )
