"""`stepscope run -- COMMAND`: record a training without changing its code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stepscope.adapters.external.memray import MemrayOptions
from stepscope.adapters.external.nsys import NsysOptions
from stepscope.adapters.external.options import external_options, take_tool
from stepscope.adapters.external.py_spy import PySpyOptions
from stepscope.adapters.options.catalogue import OPTIONS
from stepscope.adapters.options.values import as_text
from stepscope.errors import StepscopeError
from stepscope.run.layout import RunLayout

if TYPE_CHECKING:
    from stepscope.adapters.external.session import Outcome, Tool
    from stepscope.adapters.options.settings import Settings

LEFT_OUT = {
    "auto_phases",
    "enabled",
    "keep_local",
    "step_unit",
    "max_steps",
    "memory_snapshot_path",
    "deepspeed_flops",
    "deepspeed_memory",
}
"""Options that this verb decides itself, or that only a script that knows us can follow."""


def _options(function: Any) -> Any:
    """Add one option of the command line for each option of a recording."""
    for option in reversed(OPTIONS.values()):
        if option.name in LEFT_OUT:
            continue
        name = option.name.replace("_", "-")
        text = option.help
        if option.default is not None:
            # No default of click's: variables and pyproject.toml come before it.
            text += f"  [default: {as_text(option.default)}]"
        shape: dict[str, Any] = {"default": None, "help": text}
        if option.kind == "bool":
            names = f"--{name}/--no-{name}"
        else:
            names = f"--{name}"
            shape["metavar"] = "|".join(option.choices[:3]) or option.kind.upper()
        function = click.option(names, option.name, **shape)(function)
    return function


@click.command(
    "run",
    context_settings={"allow_interspersed_args": False},
)
@click.argument("command_line", metavar="COMMAND...", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--step-on",
    type=click.Choice(["optimizer", "iteration"]),
    default="optimizer",
    show_default=True,
    help="What a step is: until the optimizer has stepped, or until the next batch is asked for.",
)
@click.option("--report/--no-report", "shows_report", default=True, help="Report at the end.")
@click.option(
    "--result-file",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Write what became of the command here, as JSON, and say nothing about it.",
)
@click.option("--dry-run", is_flag=True, help="Print the command that would be run, and end.")
@click.option(
    "--tracemalloc",
    "with_tracemalloc",
    is_flag=True,
    help="Short for --window-recorder tracemalloc.",
)
@external_options
@_options
def command(
    command_line: tuple[str, ...],
    step_on: str,
    shows_report: bool,
    result_file: Path | None,
    dry_run: bool,
    with_tracemalloc: bool,
    **values: Any,
) -> int:
    """Run a training script and record it, without changing its code.

    COMMAND is what would be typed without us: `stepscope run -- python train.py --lr 0.1`, or
    `stepscope run -- torchrun --nproc-per-node 8 train.py`. It ends with the command's own exit
    code. Everything of ours goes to standard error.
    """
    from stepscope.adapters.external.below import write_beginning, write_result
    from stepscope.adapters.external.session import Outcome, run_with
    from stepscope.adapters.options.dialects import find_dialect
    from stepscope.adapters.options.settings import resolve
    from stepscope.adapters.script.launch import launch, startable

    if not command_line:
        raise click.UsageError("no command: stepscope run -- python train.py")
    command_line = startable(command_line)
    tool = take_tool(values)
    given = {
        name: (value, f"--{name.replace('_', '-')}")
        for name, value in values.items()
        if value is not None
    }
    _choose_recorder(given, tool, with_tracemalloc=with_tracemalloc)
    settings = resolve(find_dialect("native"), given)
    if dry_run:
        _show_command(command_line, tool, given, settings, step_on)
        return 0
    if result_file is not None:
        write_beginning(result_file)
    if tool is None:
        outcome = Outcome(launch(command_line, settings, step_on))
    else:
        options = _flags(given, step_on)
        outcome = run_with(tool, command_line, options, settings, step_on, _what_it_lacks(tool))
    launched = outcome.launched
    if result_file is not None:
        write_result(result_file, launched)
        return launched.exit_code
    for problem in launched.problems:
        _say(problem)
    for problem in outcome.problems:
        _say(f"{outcome.tool}: {problem}")
    if settings.settings["window_recorder"].origin == "--memray":
        _say(
            "memray: no windows were recorded, since torch's profiler would have been counted; "
            "--window-recorder torch records them all the same"
        )
    if not launched.runs and not launched.problems:
        _say(_why_nothing(launched.imported_torch))
    elif launched.batches_per_step > 1 and step_on == "optimizer":
        _say(f"gradients are accumulated: {launched.batches_per_step} batches to a step")
    for run in launched.runs:
        if shows_report:
            _report(run)
        else:
            _say(f"recorded; next: stepscope report {run}")
        if settings.value("window_recorder") == "tracemalloc":
            _tell_of_tables(run)
    _tell_of_files(outcome)
    return launched.exit_code


def _choose_recorder(
    given: dict[str, tuple[Any, str]], tool: Tool | None, *, with_tracemalloc: bool
) -> None:
    """What records the windows, as the tool beside the training allows.

    Raises:
        click.UsageError: Options contradict each other.
    """
    if with_tracemalloc:
        if isinstance(tool, MemrayOptions):
            raise click.UsageError("--tracemalloc and --memray: one would count the other's memory")
        if isinstance(tool, NsysOptions):
            raise click.UsageError("--tracemalloc and --nsys: a window has one recorder")
        if given.get("window_recorder", ("tracemalloc",))[0] != "tracemalloc":
            raise click.UsageError("--tracemalloc and another --window-recorder")
        given["window_recorder"] = ("tracemalloc", "--tracemalloc")
    if isinstance(tool, NsysOptions):
        recorder, _ = given.setdefault("window_recorder", ("cuda-range", "--nsys"))
        if tool.only_windows and recorder != "cuda-range":
            raise click.UsageError(
                f"--nsys collects in windows that are marked for it, and --window-recorder "
                f"{recorder} marks none: leave that out, or give --nsys-range all"
            )
    if isinstance(tool, MemrayOptions):
        # torch's profiler keeps its events in the memory that is being counted.
        given.setdefault("window_recorder", ("none", "--memray"))


def _flags(given: dict[str, tuple[Any, str]], step_on: str) -> list[str]:
    """The options of the recording as they are typed."""
    flags = ["--step-on", step_on]
    for name, (value, _) in given.items():
        word = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{word}" if value else f"--no-{word}")
        else:
            flags += [f"--{word}", str(value)]
    return flags


def _show_command(
    command_line: tuple[str, ...],
    tool: Tool | None,
    given: dict[str, tuple[Any, str]],
    settings: Settings,
    step_on: str,
) -> None:
    from stepscope.adapters.external.session import tool_command
    from stepscope.adapters.external.tools import shown

    words = list(command_line)
    if tool is not None:
        folder = Path(settings.value("output_dir")).absolute() / "external"
        words = tool_command(tool, folder, command_line, _flags(given, step_on), settings)
    click.echo(shown(words))
    if isinstance(tool, MemrayOptions):
        _say("memray counts from inside each process that imports torch")


def _what_it_lacks(tool: Tool) -> Callable[[], str]:
    if isinstance(tool, PySpyOptions):
        return _allowance
    return lambda: "its own lines are above; stepscope doctor looks at what it needs"


def _allowance() -> str:
    from stepscope.doctor.machine import this_machine
    from stepscope.doctor.permissions import attaching_allowance

    return attaching_allowance(this_machine())


def _tell_of_tables(run: Path) -> None:
    """Say where tracemalloc's tables are."""
    from stepscope.run.reader import open_run

    for window in open_run(run).windows:
        for artifact in window.record.artifacts if window.record is not None else ():
            if artifact.kind == "python_memory":
                path = RunLayout(run).rank(window.rank).root / artifact.path
                _say(f"tracemalloc: {path}")


def _tell_of_files(outcome: Outcome) -> None:
    """Say where the tool's files are, and how to look at them."""
    for rank, peak in sorted(outcome.peak_bytes.items()):
        from stepscope.report.units import size

        _say(f"memray: rank {rank} held {size(peak)} of the host's memory at its peak")
    for path in outcome.files:
        if path.name.endswith((".nsys-rep", "py-spy.json")):
            _say(f"{outcome.tool}: next: stepscope report {path}")
        elif path.suffix in {".html", ".svg"}:
            _say(f"{outcome.tool}: open in a browser: {path}")
        else:
            _say(f"{outcome.tool}: {path}")


def _why_nothing(imported_torch: bool) -> str:
    if imported_torch:
        return (
            "nothing was trained: torch was imported, and no optimizer of torch.optim made a step "
            "in a main thread, so there is no run"
        )
    return (
        "nothing was trained: no process imported torch, so there is no run (Python with -I, -E or "
        "-S does not let itself be watched)"
    )


def _say(message: str) -> None:
    click.echo(f"stepscope: {message}", err=True)


def _report(run: Path) -> None:
    """Print the report on standard error: standard output is the script's own."""
    from stepscope.advice.diagnosis import diagnose
    from stepscope.report.console import console
    from stepscope.report.diagnosis.terminal import print_diagnosis
    from stepscope.run.reader import open_run

    screen = console(stderr=True)
    try:
        diagnosis = diagnose(open_run(run))
        screen.print()
        print_diagnosis(diagnosis, screen)
    except StepscopeError as error:
        _say(f"no report: {error}")
    _say(f"the run: {run}")
