"""One training with another tool, from the command to the files in the run.

Tools that launch a program do not report how it ended (py-spy always exits with 0), and a signal
ends the tool but not the program. So the tool launches `stepscope run` again, which runs the
training, passes signals on and writes down how the training ended, for the outer one to read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stepscope.adapters.external import nsys
from stepscope.adapters.external.memray import MemrayOptions, make_reports
from stepscope.adapters.external.nsys import NsysOptions
from stepscope.adapters.external.tools import Tool, find_program, keep, scratch_folder, version_of
from stepscope.adapters.options.settings import Settings
from stepscope.adapters.script.launch import (
    Launched,
    launch,
    no_empty_folder_left,
    passing_signals_on,
)
from stepscope.doctor.installed import installed_version
from stepscope.errors import UsageError
from stepscope.monitor.processes import is_running
from stepscope.run.files import write_atomically
from stepscope.run.layout import MANIFEST_FILE
from stepscope.run.manifest import ExternalRecord
from stepscope.run.side_json import decode

EARLY_S = 30.0
"""A tool that ends sooner than this, and before the training, never began to record."""
_LOOK_S = 0.1


def write_beginning(path: Path) -> None:
    """Write which process runs the training."""
    _write(path, {"process_id": os.getpid()})


def write_result(path: Path, launched: Launched) -> None:
    """Write the outcome of the training."""
    members = {str(run): ranks for run, ranks in launched.members.items()}
    values = {**dataclasses.asdict(launched), "members": members}
    _write(path, {"process_id": os.getpid(), **values})


def read_result(path: Path) -> Launched | None:
    """The outcome of the training; None while it runs or if it is unknown."""
    values = _read(path)
    if "exit_code" not in values:
        return None
    launched: Launched = decode(Launched, values)
    return launched


def run_below(
    command: Sequence[str], result: Path, why_failed: Callable[[], str]
) -> tuple[Launched, list[str]]:
    """Run a tool with the training below it, and wait for both.

    Args:
        command: The tool with its arguments, and `stepscope run` with its own.
        result: Where the inner one writes how the training ended.
        why_failed: Returns what a tool that did not start may lack.

    Returns:
        The outcome of the training, and the problems of the tool.

    Raises:
        UsageError: The tool ended at the start, and so did the training.
    """
    started = time.monotonic()
    # Ctrl-C is for the training alone: py-spy would kill what it started, and nobody would know how
    # that ended. Only sudo needs the terminal, to ask for a password.
    is_apart = command[0] != "sudo"
    try:
        tool = subprocess.Popen(list(command), start_new_session=is_apart)
    except OSError as error:
        raise UsageError(f"{command[0]}: cannot be started: {error.strerror or error}") from None
    with passing_signals_on(
        lambda number: _pass_on(number, result, tool), shares_terminal=not is_apart
    ):
        code = _wait(tool.wait)
        inner = _read(result).get("process_id")
        is_early = time.monotonic() - started < EARLY_S
        launched = read_result(result)
        if launched is None and inner is not None and is_running(inner):
            if code and is_early:
                _end(inner)
                raise UsageError(
                    f"{Path(command[0]).name} ended with {code} at the start: {why_failed()}"
                )
            _wait(lambda: _wait_for(inner))
            launched = read_result(result)
            lost = f"{Path(command[0]).name} ended with {code} before the training did"
            return _or_unknown(launched, code), [lost]
    if launched is None and inner is None:
        raise UsageError(
            f"{Path(command[0]).name} ended with {code} without starting the training: "
            f"{why_failed()}"
        )
    problems = [] if code in {0, _or_unknown(launched, code).exit_code} else [f"exit code {code}"]
    return _or_unknown(launched, code), problems


def _or_unknown(launched: Launched | None, code: int) -> Launched:
    """The outcome of the training, or one with the tool's exit code if both were killed."""
    code = 128 - code if code < 0 else code
    return launched or Launched(code or 1, (), True, 0, ("its exit is unknown",), {})


def _pass_on(number: int, result: Path, tool: subprocess.Popen[bytes]) -> None:
    """Pass a signal on to the training; the tool ends with it."""
    inner = _read(result).get("process_id")
    with contextlib.suppress(OSError):
        if isinstance(inner, int) and is_running(inner):
            os.kill(inner, number)
        else:
            tool.send_signal(number)


def _wait(wait: Callable[[], int]) -> int:
    """Wait, even through Ctrl-C, which a terminal sends to the tool and the training as well."""
    code: int | None = None
    while code is None:
        with contextlib.suppress(KeyboardInterrupt):
            code = wait()
    return code


def _wait_for(process_id: int, most_s: float = math.inf) -> int:
    until = time.monotonic() + most_s
    while is_running(process_id) and time.monotonic() < until:
        time.sleep(_LOOK_S)
    return 0


def _end(process_id: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(process_id, signal.SIGTERM)
    _wait_for(process_id, 10.0)
    if is_running(process_id):
        with contextlib.suppress(OSError):
            os.kill(process_id, signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM)


def _read(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def _write(path: Path, values: dict[str, Any]) -> None:
    try:
        write_atomically(path, json.dumps(values, default=str).encode())
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from None


RESULT_FILE = "result.json"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a training and of the tool, with peaks of host memory by rank from memray."""

    launched: Launched
    tool: str = ""
    files: tuple[Path, ...] = ()
    problems: tuple[str, ...] = ()
    peak_bytes: Mapping[int, int] = field(default_factory=dict)


def tool_command(
    tool: Tool | None,
    folder: Path,
    command: Sequence[str],
    options: Sequence[str],
    settings: Settings,
    program: str = "",
) -> list[str]:
    """The full command: the tool if any, below it `stepscope run`, and below that the training."""
    if tool is None or isinstance(tool, MemrayOptions):
        return list(command)  # memray tracks memory from inside the processes
    program = program or find_program(tool.name) or tool.name
    inner = [sys.executable, "-m", "stepscope", "run", "--no-report"]
    inner += ["--result-file", str(folder / RESULT_FILE), *options, "--", *command]
    return tool.command(folder, inner, program, windows=settings.value("repeat"))


def run_with(
    tool: Tool,
    command: Sequence[str],
    options: Sequence[str],
    settings: Settings,
    step_on: str,
) -> Outcome:
    """Run a training with a tool, and move the tool's files into the run.

    Raises:
        UsageError: The tool is missing, or failed at the start; the training has not run.
    """
    program = tool.require()
    with no_empty_folder_left(Path(settings.value("output_dir")).absolute()):
        try:
            folder = scratch_folder(Path(settings.value("output_dir")), tool.name)
        except OSError as error:
            raise UsageError(f"{settings.value('output_dir')}: {error.strerror or error}") from None
        whole = tool_command(tool, folder, command, options, settings, program)
        is_memray = isinstance(tool, MemrayOptions)
        version = installed_version("memray") or "" if is_memray else version_of(program)
        record = ExternalRecord(tool.name, version, tuple(whole), started_ns=time.time_ns())
        problems: list[str] = []
        peaks: Mapping[int, int] = {}
        try:
            if isinstance(tool, MemrayOptions):
                request = {"folder": str(folder), **asdict(tool)}
                launched = launch(command, settings, step_on, request)
                peaks, found = make_reports(folder, launched.ranks)
                problems += found
            else:
                launched, problems = run_below(whole, folder / RESULT_FILE, tool.lacks)
        except UsageError:
            (folder / RESULT_FILE).unlink(missing_ok=True)
            keep(folder, record, None)
            raise
        (folder / RESULT_FILE).unlink(missing_ok=True)
        problems += filter(None, [tool.missing(folder)])
        run = launched.runs[0] if launched.runs else None
        try:
            home = keep(folder, record, run, problems)
        except OSError as error:
            problems.append(f"its files stay in {folder}: {error}")
            home = folder
        files = sorted(home.iterdir()) if home is not None and home.is_dir() else []
        if isinstance(tool, NsysOptions) and tool.output:
            try:
                files += nsys.put_reports(
                    [path for path in files if path.suffix == ".nsys-rep"], tool.output
                )
            except OSError as error:
                problems.append(f"{tool.output}: {error.strerror or error}")
        return Outcome(
            launched,
            tool.name,
            tuple(path for path in files if path.name != MANIFEST_FILE),
            tuple(problems),
            peaks,
        )
