"""`stepscope doctor`: can this machine, its Python and its torch record and read?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from stepscope.commands.options import SecondsOption, format_option
from stepscope.commands.sinks import StandardSink, print_message
from stepscope.report.outputs import Output
from stepscope.report.outputs import output as output_of

if TYPE_CHECKING:
    from stepscope.doctor.torch_check import TorchReport


@click.command("doctor")
@click.option(
    "--output-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    default=Path("profiles"),
    show_default=True,
    help="Folder for recordings; its free space and permissions are checked.",
)
@click.option(
    "--timeout",
    "timeout_seconds",
    cls=SecondsOption,
    type=click.FloatRange(min=0, min_open=True),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for torch to be imported and tried, in a separate process.",
)
@format_option("checks")
@click.option(
    "--fail-on",
    type=click.Choice(["problem", "warning"]),
    help="Exit with 1 if a check ends like this, or worse.",
)
@click.option(
    "--config",
    "shows_config",
    is_flag=True,
    help="Only show each recording option, its value here, and where the value comes from.",
)
@click.option(
    "--report",
    "is_report",
    is_flag=True,
    help="Print versions and checks for a bug report, without names of users and hosts.",
)
@click.option(
    "--dialect",
    metavar="NAME",
    default="native",
    show_default=True,
    help="With --config: the dialect whose defaults apply; `stepscope dialects` lists them.",
)
def command(
    output_dir: Path,
    timeout_seconds: float,
    output: Output,
    fail_on: str | None,
    shows_config: bool,
    is_report: bool,
    dialect: str,
) -> int:
    """Check what recording and reading need, and say how to fix what is missing.

    torch is imported in a separate process, which makes three short recordings. A torch that
    crashes or hangs is reported like any other problem. Nothing on this machine is changed.
    """
    context = click.get_current_context()
    if not shows_config and context.get_parameter_source("dialect") != ParameterSource.DEFAULT:
        raise click.UsageError("--dialect applies to --config only")
    if shows_config:
        # The options that a script without flags would get if it started here.
        from stepscope.adapters.options.dialects import find_dialect
        from stepscope.adapters.options.settings import misspelled_variables, resolve

        settings = resolve(find_dialect(dialect), {})
        settings.config()  # raises for options that conflict
        output_of("settings", output.format.name).write(settings, StandardSink())
        for line in misspelled_variables():
            print_message(line)
        return 0
    from stepscope.doctor.check import State, worst
    from stepscope.doctor.examination import examine
    from stepscope.system import this_machine

    report = _ask_torch(timeout_seconds)
    checks = examine(this_machine(), report, output_dir)
    if is_report:
        from stepscope.report.checks import bug_report
        from stepscope.report.sharing import Pseudonyms

        StandardSink().write(Pseudonyms.of_reader().text(bug_report(checks)))
    else:
        output.write(checks, StandardSink())
    failing = {"problem": {State.PROBLEM}, "warning": {State.PROBLEM, State.WARNING}}
    return int(worst(checks) in failing.get(fail_on or "", set()))


def _ask_torch(timeout_seconds: float) -> TorchReport:
    from stepscope.doctor.torch_check import probe_torch

    sink = StandardSink(is_error=True)
    if not sink.is_terminal:
        return probe_torch(timeout_seconds)
    with sink.console().status("Trying torch in a separate process …"):
        return probe_torch(timeout_seconds)
