"""Attaches py-spy to a running process."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from stepscope.adapters.external.keep import keep, scratch_folder
from stepscope.adapters.external.py_spy import (
    FORMATS,
    NO_PYTHON,
    PySpyOptions,
    explain,
)
from stepscope.adapters.external.tools import version_of
from stepscope.errors import UsageError
from stepscope.monitor.processes import is_running
from stepscope.run.manifest import ExternalRecord

_PATIENCE_S = 120.0
"""How long py-spy may take to write its file after sampling."""


def attach(
    process_id: int,
    options: PySpyOptions,
    seconds: float,
    run: Path | None,
    output: Path | None,
    say: Callable[[str], None],
) -> Path:
    """Sample a process and its children.

    Args:
        run: The run directory to which the file belongs; None if it belongs to no run.

    Raises:
        UsageError: py-spy is missing or not allowed, or cannot sample this process.
    """
    program = options.require()
    if not is_running(process_id):
        raise UsageError(f"there is no process {process_id} on this machine")
    try:
        folder = scratch_folder(run, "py-spy") if run is not None else None
        if folder is not None:
            path = folder / options.file_name
        else:
            path = output or Path(f"py-spy-{process_id}{FORMATS[options.format]}")
            path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{run or output}: {error.strerror or error}") from None
    command = options.record(program, path, ("--pid", str(process_id)), seconds)
    version = version_of(program) if folder is not None else ""
    record = ExternalRecord("py-spy", version, tuple(command), started_ns=time.time_ns())
    say(f"sampling process {process_id} for {seconds:g} s")
    code, said = _run(command, seconds)
    if code or not path.is_file():
        if folder is not None:
            keep(folder, record, None)
        if NO_PYTHON in said.lower():
            # py-spy also says so of processes that it may not read; asked for a single stack, it is
            # exact.
            _, more = _run([program, "dump", "--pid", str(process_id)], 0.0)
            said = more or said
        raise explain(said, options.lacks())
    if folder is None:
        return path
    home = keep(folder, record, run)
    return path if home is None else home / path.name


def _run(command: list[str], seconds: float) -> tuple[int, str]:
    """Run py-spy; returns its exit code and standard error."""
    with tempfile.TemporaryFile() as complaints:
        sampler = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=complaints)
        until = time.monotonic() + seconds + _PATIENCE_S
        while sampler.poll() is None:
            if time.monotonic() > until:
                sampler.kill()
                sampler.wait()
                return 1, f"py-spy was still running {_PATIENCE_S:.0f} s after the end"
            # A terminal sends Ctrl-C to py-spy as well, which then writes its samples.
            with contextlib.suppress(KeyboardInterrupt, subprocess.TimeoutExpired):
                sampler.wait(1.0)
        complaints.seek(0)
        return sampler.returncode, complaints.read().decode("utf-8", "replace")
