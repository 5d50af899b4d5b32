"""`stepscope doctor`: is this machine, its Python and its torch in order for recording?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stepscope.commands.options import format_option
from stepscope.commands.sinks import StandardSink
from stepscope.report.outputs import Output
from stepscope.report.outputs import output as output_of

if TYPE_CHECKING:
    from stepscope.doctor.torch_check import TorchReport


@click.command("doctor")
@click.option(
    "--output-dir",
    type=click.Path(path_type=Path),
    default=Path("profiles"),
    show_default=True,
    help="Where recordings are to go: its room and permissions are checked.",
)
@click.option(
    "--timeout",
    "timeout_seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="How long torch may take to be imported and tried, in a process of its own.",
)
@format_option("checks", "How to print it.")
@click.option(
    "--fail-on",
    type=click.Choice(["problem", "warning"]),
    help="Exit with 1 if there is one of these, or worse.",
)
@click.option(
    "--config",
    "shows_config",
    is_flag=True,
    help="Only show each option of a recording, its value here, and where that comes from.",
)
@click.option(
    "--dialect",
    default="native",
    show_default=True,
    help="With --config: whose defaults hold; `stepscope dialects` lists them.",
)
def command(
    output_dir: Path,
    timeout_seconds: float,
    output: Output,
    fail_on: str | None,
    shows_config: bool,
    dialect: str,
) -> int:
    """Check what recording and reading need here, and say how to mend what is missing.

    torch is imported in a process of its own, which makes three small recordings: a torch that
    crashes or hangs is reported like anything else. Nothing on this machine is changed.
    """
    if shows_config:
        _show_config(dialect, output_of("settings", output.format.name))
        return 0
    from stepscope.doctor.check import State, worst
    from stepscope.doctor.examination import examine, this_interpreter
    from stepscope.doctor.machine import this_machine

    report = _ask_torch(timeout_seconds)
    checks = examine(this_machine(), this_interpreter(), report, output_dir)
    output.write(checks, StandardSink())
    failing = {"problem": {State.PROBLEM}, "warning": {State.PROBLEM, State.WARNING}}
    return int(worst(checks) in failing.get(fail_on or "", set()))


def _ask_torch(timeout_seconds: float) -> TorchReport:
    """Run the self-test, with a sign of life where somebody watches."""
    from stepscope.doctor.torch_check import run_self_test

    sink = StandardSink(is_error=True)
    if not sink.is_terminal:
        return run_self_test(timeout_seconds)
    with sink.console().status("Trying torch in a process of its own …"):
        return run_self_test(timeout_seconds)


def _show_config(dialect: str, output: Output) -> None:
    """Print the options as a script without any flags would get them, started here."""
    from stepscope.adapters.options.dialects import find_dialect
    from stepscope.adapters.options.settings import resolve, strange_variables
    from stepscope.adapters.options.sheets import setting_sheet

    settings = resolve(find_dialect(dialect), {})
    settings.config()  # options that cannot work together are told here, not in the training
    output.write(setting_sheet(settings), StandardSink())
    for name in strange_variables():
        click.echo(f"stepscope: the variable {name} is no option: is it misspelled?", err=True)
