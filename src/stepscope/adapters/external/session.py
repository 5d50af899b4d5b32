"""One training with another tool, from the command to the files in the run."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stepscope.adapters.external import memray, nsys, py_spy
from stepscope.adapters.external.below import run_below
from stepscope.adapters.external.keep import Recording, keep, scratch_folder
from stepscope.adapters.external.memray import MemrayOptions
from stepscope.adapters.external.nsys import NsysOptions
from stepscope.adapters.external.py_spy import PySpyOptions
from stepscope.adapters.external.tools import find_program, version_of
from stepscope.adapters.options.settings import Settings
from stepscope.adapters.script.launch import Launched, launch
from stepscope.errors import UsageError
from stepscope.run.layout import MANIFEST_FILE

Tool = PySpyOptions | NsysOptions | MemrayOptions
RESULT_FILE = "result.json"
_NAMES: dict[type, str] = {PySpyOptions: "py-spy", NsysOptions: "nsys", MemrayOptions: "memray"}


@dataclass(frozen=True)
class Outcome:
    """The outcome of a training and of the tool.

    Attributes:
        peak_bytes: Peak of host memory by rank, if memray tracked it.
    """

    launched: Launched
    tool: str = ""
    files: tuple[Path, ...] = ()
    problems: tuple[str, ...] = ()
    peak_bytes: Mapping[int, int] = field(default_factory=dict)


def require(tool: Tool, command: Sequence[str]) -> str:
    """Check that a tool is available before anything starts; returns the path of its program."""
    if isinstance(tool, PySpyOptions):
        return py_spy.require_py_spy()
    if isinstance(tool, NsysOptions):
        return nsys.require_nsys()
    memray.require_memray(command)
    return sys.executable


def tool_command(
    tool: Tool,
    folder: Path,
    command: Sequence[str],
    options: Sequence[str],
    settings: Settings,
    program: str = "",
) -> list[str]:
    """The full command: the tool, below it `stepscope run`, and below that the training.

    Args:
        program: The path of the tool; searched by default, and its bare name if it is missing.
    """
    if isinstance(tool, MemrayOptions):
        return list(command)  # it tracks memory from inside the processes
    program = program or find_program(_NAMES[type(tool)]) or _NAMES[type(tool)]
    inner = [sys.executable, "-m", "stepscope", "run", "--no-report"]
    inner += ["--result-file", str(folder / RESULT_FILE), *options, "--", *command]
    if isinstance(tool, PySpyOptions):
        return py_spy.record_command(tool, folder / tool.file_name, below=inner, program=program)
    return nsys.profile_command(
        tool,
        folder / nsys.REPORT,
        inner,
        windows=settings.value("repeat"),
        program=program,
        version=version_of(program),
    )


def run_with(
    tool: Tool,
    command: Sequence[str],
    options: Sequence[str],
    settings: Settings,
    step_on: str,
    why_failed: Callable[[], str],
) -> Outcome:
    """Run a training with a tool, and move the tool's files into the run.

    Args:
        why_failed: Returns what a tool that did not start may lack.

    Raises:
        UsageError: The tool is missing, or failed at the start; the training has not run.
    """
    program = require(tool, command)
    name = _NAMES[type(tool)]
    try:
        folder = scratch_folder(Path(settings.value("output_dir")), name)
    except OSError as error:
        raise UsageError(f"{settings.value('output_dir')}: {error.strerror or error}") from None
    whole = tool_command(tool, folder, command, options, settings, program)
    version = memray.version() if isinstance(tool, MemrayOptions) else version_of(program)
    recording = Recording(name, folder, time.time_ns(), tuple(whole), version)
    problems: list[str] = []
    peaks: Mapping[int, int] = {}
    try:
        if isinstance(tool, MemrayOptions):
            launched = launch(command, settings, step_on, memray.request(tool, folder))
            made = memray.make_reports(folder, launched.ranks)
            peaks = made.peak_bytes
            problems += made.problems
        else:
            launched, problems = run_below(whole, folder / RESULT_FILE, why_failed)
    except UsageError:
        (folder / RESULT_FILE).unlink(missing_ok=True)
        keep(recording, None)
        raise
    (folder / RESULT_FILE).unlink(missing_ok=True)
    problems += _missing(tool, folder)
    run = launched.runs[0] if launched.runs else None
    try:
        home = keep(recording, run, problems)
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
        name,
        tuple(path for path in files if path.name != MANIFEST_FILE),
        tuple(problems),
        peaks,
    )


def _missing(tool: Tool, folder: Path) -> list[str]:
    """What the tool should have written and did not."""
    if isinstance(tool, PySpyOptions):
        path = folder / tool.file_name
        if not path.is_file() or not path.stat().st_size:
            return ["it took no samples and wrote no file"]
    if isinstance(tool, NsysOptions) and not nsys.reports_in(folder):
        return [
            "it wrote no report"
            + (
                ": no window was marked for it, which requires a training on CUDA; "
                "--nsys-range all records without windows"
                if tool.only_windows
                else ""
            )
        ]
    return []
