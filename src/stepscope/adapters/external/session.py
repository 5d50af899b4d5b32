"""One training with another tool, from the command to the files in the run."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from stepscope.adapters.external import nsys
from stepscope.adapters.external.below import run_below
from stepscope.adapters.external.keep import keep, scratch_folder
from stepscope.adapters.external.memray import MemrayOptions, make_reports
from stepscope.adapters.external.nsys import NsysOptions
from stepscope.adapters.external.tools import Tool, find_program, version_of
from stepscope.adapters.options.settings import Settings
from stepscope.adapters.script.launch import Launched, launch
from stepscope.doctor.packages import installed_version
from stepscope.errors import UsageError
from stepscope.run.layout import MANIFEST_FILE
from stepscope.run.manifest import ExternalRecord

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
