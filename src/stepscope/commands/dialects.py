"""`stepscope dialects`: what each option is called in the frameworks that are understood."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from stepscope.adapters.options.dialect import Dialect


@click.command("dialects")
@click.argument("name", required=False)
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="How to print it.",
)
def command(name: str | None, output_format: str) -> None:
    """List the flags of each dialect, their defaults, and the files that it promises.

    NAME is one of them; all are listed without it.
    """
    from stepscope.adapters.options.dialects import DIALECTS, find_dialect

    chosen = [find_dialect(name)] if name else list(DIALECTS.values())
    if output_format == "json":
        import json

        document = {"format": "stepscope-dialects", "version": 1}
        click.echo(
            json.dumps({**document, "dialects": [_plain(item) for item in chosen]}, indent=2)
        )
        return
    _print_tables(chosen)


def _print_tables(dialects: list[Dialect]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from stepscope.adapters.options.values import as_text

    console = Console(highlight=False, soft_wrap=False)
    for number, dialect in enumerate(dialects):
        if number:
            console.print()
        console.print(Text.assemble((dialect.name, "bold"), f": {dialect.about}"))
        for line in _notes(dialect):
            console.print(Text(f"  {line}"))
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
        for heading in ("flag", "option", "default", "form"):
            table.add_column(heading, overflow="fold", no_wrap=heading != "default")
        for flag in dialect.flags:
            value = as_text(dialect.default(flag.option))
            table.add_row(" ".join(flag.names), flag.option, value, flag.style)
        console.print(table)


def _notes(dialect: Dialect) -> list[str]:
    from stepscope.adapters.options.values import as_text

    spoken = {flag.option for flag in dialect.flags}
    lines = [f"a step is: {dialect.step_unit}; ranks that record: {dialect.ranks}"]
    silent = [
        f"{option}={as_text(value)}"
        for option, value in dialect.defaults.items()
        if option not in spoken and option not in {"step_unit", "ranks"}
    ]
    if silent:
        lines.append(f"besides: {', '.join(silent)}")
    for rule in dialect.rules:
        sets = ", ".join(f"{option}={as_text(value)}" for option, value in rule.sets)
        lines.append(f"unless {rule.option}={as_text(rule.unless)}: {sets} ({rule.reason})")
    if dialect.needs:
        needed = ", ".join(f"--{name.replace('_', '-')}" for name in dialect.needs)
        lines.append(f"needs, where the script has it: {needed}")
    if dialect.raises_max_steps:
        lines.append("max_steps is raised where it is too small for one window")
    return lines + [f"file: {name}" for name in dialect.files]


def _plain(dialect: Dialect) -> dict[str, Any]:
    return {
        "name": dialect.name,
        "about": dialect.about,
        "step_unit": dialect.step_unit,
        "ranks": dialect.ranks,
        "flags": [
            {
                "names": list(flag.names),
                "option": flag.option,
                "default": dialect.default(flag.option),
                "form": flag.style,
            }
            for flag in dialect.flags
        ],
        "defaults": dict(dialect.defaults),
        "rules": [
            {
                "option": rule.option,
                "unless": rule.unless,
                "sets": dict(rule.sets),
                "reason": rule.reason,
            }
            for rule in dialect.rules
        ],
        "needs": list(dialect.needs),
        "files": list(dialect.files),
    }
