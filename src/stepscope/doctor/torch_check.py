"""Tries torch in a separate process, which may crash or hang without harm."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stepscope._package import IMPORT_ROOT

# Our folder goes to the end of the path: first, it could hide parts of the standard library.
_PROGRAM = (
    "import runpy, sys; sys.path.append(sys.argv.pop(1)); "
    "runpy.run_module('stepscope.capture.torch_probe', run_name='__main__')"
)


@dataclass(frozen=True)
class TorchReport:
    """The report of torch's process, as far as it got.

    Attributes:
        stages: The result of each finished stage, by name; the error of one that crashed.
        stopped_in: The stage after which no other was tried: torch itself crashed, or time ran
            out; empty if all were.
        reason: How the process ended there, in a few words; empty if it did not.
        last_line: The last line of its standard error; empty if there is none.
    """

    stages: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    stopped_in: str = ""
    reason: str = ""
    last_line: str = ""

    def result(self, stage: str) -> Mapping[str, Any] | None:
        """The result of a stage; None if it failed, was not reached, or was interrupted."""
        found = self.stages.get(stage)
        return None if found is None or "error" in found else found

    def failure(self, stage: str) -> str:
        """Why a stage has no result; empty if it has one or was not started."""
        if self.stopped_in == stage:
            return self.reason
        return str(self.stages.get(stage, {}).get("error", ""))


def probe_torch(
    timeout_seconds: float,
    command: Sequence[str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> TorchReport:
    """Run `stepscope.capture.torch_probe` and read its report. Never raises for what torch does.

    If a stage crashes the process, another process runs the stages that are left.
    """
    if command is None:
        command = [sys.executable, "-c", _PROGRAM, str(IMPORT_ROOT)]
    given = os.environ if environment is None else environment
    end = time.monotonic() + timeout_seconds
    stages: dict[str, Mapping[str, Any]] = {}
    while True:
        report = _run([*command, *stages], given, end - time.monotonic(), timeout_seconds)
        stages.update(report.stages)
        crashed = report.stopped_in
        if crashed == "torch" and crashed in stages:  # the last stage had crashed: none was left
            return TorchReport(stages=stages)
        # Without torch nothing is left to try, and a hang takes all the time.
        if not crashed or crashed in {"torch", *stages} or time.monotonic() >= end:
            return replace(report, stages=stages)
        line = report.last_line
        stages[crashed] = {"error": f"{report.reason} ({line})" if line else report.reason}


def _run(
    command: Sequence[str], given: Mapping[str, str], time_left: float, timeout_seconds: float
) -> TorchReport:
    """Run a command, for what is left of all the time, and read its report."""
    with tempfile.TemporaryDirectory(prefix="stepscope-doctor-") as folder:
        # Files, not pipes: a grandchild that outlives the process could keep a pipe open forever.
        output, complaints = Path(folder) / "output", Path(folder) / "complaints"
        with output.open("wb") as stdout, complaints.open("wb") as stderr:
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    cwd=folder,
                    env=_environment(given),
                    start_new_session=True,
                )
            except OSError as error:
                return TorchReport(stopped_in="torch", reason=f"it could not be started: {error}")
            reason = _await(process, time_left, timeout_seconds)
        lines = output.read_bytes().decode("utf-8", "replace").splitlines()
        messages = complaints.read_bytes().decode("utf-8", "replace").splitlines()
    return read_report(lines, reason, [line for line in messages if line.strip()])


def read_report(lines: Sequence[str], reason: str, complaints: Sequence[str]) -> TorchReport:
    """Create the report from the lines that the process printed, other programs' left out."""
    stages: dict[str, Mapping[str, Any]] = {}
    open_stage = ""
    for line in lines:
        try:
            message = json.loads(line)
        except ValueError:
            continue
        if not isinstance(message, dict):
            continue
        if "begin" in message:
            open_stage = str(message["begin"])
        elif "end" in message and isinstance(message.get("result"), dict):
            stages[str(message["end"])] = message["result"]
            open_stage = ""
    if not open_stage and not reason and not stages:
        reason = "it ended without a report"
    stopped_in = open_stage or ("torch" if reason and not stages else "")
    if stopped_in and not reason:
        reason = "it ended early"
    return TorchReport(
        stages=stages,
        stopped_in=stopped_in,
        reason=reason if stopped_in else "",
        last_line=complaints[-1].strip() if complaints else "",
    )


def _await(process: subprocess.Popen[bytes], time_left: float, timeout_seconds: float) -> str:
    """Wait for the process; returns how it was ended, or an empty text."""
    try:
        code = process.wait(time_left)
    except subprocess.TimeoutExpired:
        _end(process)
        return f"it was still busy after {timeout_seconds:g} s and was ended"
    except BaseException:
        _end(process)  # Ctrl-C must not leave it behind
        raise
    if code >= 0:
        return ""
    try:
        return f"it was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"it was ended by signal {-code}"


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    # A process that waits for a broken driver cannot be killed; continue without it.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)


def _environment(given: Mapping[str, str]) -> dict[str, str]:
    """Our variables, so that they affect torch as here, with paths valid in another folder."""
    paths = [entry for entry in given.get("PYTHONPATH", "").split(os.pathsep) if entry]
    absolute = os.pathsep.join(str(Path(entry).absolute()) for entry in paths)
    return {**given, "PYTHONPATH": absolute, "PYTHONUNBUFFERED": "1"}
