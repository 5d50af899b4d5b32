"""`stepscope run -- COMMAND`: record a training without changing its code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from stepscope.adapters.options import OPTIONS
from stepscope.errors import StepscopeError

_LEFT_OUT = {"enabled", "step_unit", "max_steps"}
"""Options that this verb decides itself, or that only a loop that asks us can follow."""


def _options(function: Any) -> Any:
    """Add one option of the command line for each option of a recording."""
    for option in reversed(OPTIONS.values()):
        if option.name in _LEFT_OUT:
            continue
        name = option.name.replace("_", "-")
        shape: dict[str, Any] = {"default": None, "help": option.help}
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
@_options
def command(
    command_line: tuple[str, ...],
    step_on: str,
    shows_report: bool,
    **values: Any,
) -> int:
    """Run a training script and record it, without changing its code.

    COMMAND is what would be typed without us: `stepscope run -- python train.py --lr 0.1`, or
    `stepscope run -- torchrun --nproc-per-node 8 train.py`. It ends with the command's own exit
    code. Everything of ours goes to standard error.
    """
    from stepscope.adapters.dialects import find_dialect
    from stepscope.adapters.launch import launch
    from stepscope.adapters.settings import resolve

    if not command_line:
        raise click.UsageError("no command: stepscope run -- python train.py")
    given = {
        name: (value, f"--{name.replace('_', '-')}")
        for name, value in values.items()
        if value is not None
    }
    launched = launch(command_line, resolve(find_dialect("native"), given), step_on)
    for problem in launched.problems:
        _say(problem)
    if not launched.runs:
        _say(_why_nothing(launched.imported_torch))
        return launched.exit_code
    if launched.batches_per_step > 1 and step_on == "optimizer":
        _say(f"gradients are accumulated: {launched.batches_per_step} batches to a step")
    for run in launched.runs:
        if shows_report:
            _report(run)
        else:
            _say(f"recorded; next: stepscope report {run}")
    return launched.exit_code


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
    from stepscope.report.terminal import print_diagnosis
    from stepscope.run.reader import open_run

    screen = console(stderr=True)
    try:
        diagnosis = diagnose(open_run(run))
        screen.print()
        print_diagnosis(diagnosis, screen)
    except StepscopeError as error:
        _say(f"no report: {error}")
    _say(f"the run: {run}")
