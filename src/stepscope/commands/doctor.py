"""`stepscope doctor`: is this machine, its Python and its torch in order for recording?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

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
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="How to print it.",
)
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
    output_format: str,
    fail_on: str | None,
    shows_config: bool,
    dialect: str,
) -> int:
    """Check what recording and reading need here, and say how to mend what is missing.

    torch is imported in a process of its own, which makes three small recordings: a torch that
    crashes or hangs is reported like anything else. Nothing on this machine is changed.
    """
    if shows_config:
        _show_config(dialect, output_format)
        return 0
    from rich.console import Console

    from stepscope.doctor.check import State, worst
    from stepscope.doctor.examination import examine, this_interpreter
    from stepscope.doctor.machine import this_machine
    from stepscope.report.machine.checks import checks_to_dict, print_checks

    report = _ask_torch(timeout_seconds)
    checks = examine(this_machine(), this_interpreter(), report, output_dir)
    if output_format == "json":
        import json

        click.echo(json.dumps(checks_to_dict(checks), indent=2, ensure_ascii=False))
    else:
        print_checks(checks, Console(highlight=False, soft_wrap=False))
    failing = {"problem": {State.PROBLEM}, "warning": {State.PROBLEM, State.WARNING}}
    return int(worst(checks) in failing.get(fail_on or "", set()))


def _ask_torch(timeout_seconds: float) -> TorchReport:
    """Probe torch, with a sign of life where somebody watches."""
    from rich.console import Console

    from stepscope.doctor.torch_check import probe_torch

    messages = Console(stderr=True, highlight=False)
    if not messages.is_terminal:
        return probe_torch(timeout_seconds)
    with messages.status("Trying torch in a process of its own …"):
        return probe_torch(timeout_seconds)


def _show_config(dialect: str, output_format: str) -> None:
    """Print the options as a script without any flags would get them, started here."""
    from stepscope.adapters.options.dialects import find_dialect
    from stepscope.adapters.options.settings import resolve, strange_variables
    from stepscope.adapters.options.values import as_text

    settings = resolve(find_dialect(dialect), {})
    settings.config()  # options that cannot work together are told here, not in the training
    rows = list(settings.settings.values())
    if output_format == "json":
        import json

        document = {
            "format": "stepscope-config",
            "version": 1,
            "dialect": dialect,
            "options": [
                {"name": row.option.name, "value": row.value, "origin": row.origin} for row in rows
            ],
        }
        click.echo(json.dumps(document, indent=2, default=str))
    else:
        from rich.console import Console
        from rich.table import Table

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for heading in ("option", "value", "from"):
            table.add_column(heading, overflow="fold")
        for row in rows:
            is_default = row.origin == "default"
            style = "dim" if is_default else "bold"
            table.add_row(row.option.name, as_text(row.value), row.origin, style=style)
        Console(highlight=False, soft_wrap=False).print(table)
    for name in strange_variables():
        click.echo(f"stepscope: the variable {name} is no option: is it misspelled?", err=True)
