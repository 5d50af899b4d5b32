"""Option names of other frameworks, on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from stepscope.report.console import width_for
from stepscope.report.outputs import Layout, Sink

if TYPE_CHECKING:
    from stepscope.adapters.options.dialect import Dialect


def write(dialects: Sequence[Dialect], sink: Sink, _layout: Layout) -> None:
    """Print the dialects one after the other: notes, then flags."""
    console = sink.console(width=width_for(sink))
    for number, dialect in enumerate(dialects):
        if number:
            console.print()
        console.print(Text.assemble((dialect.name, "bold"), f": {dialect.about}"))
        for note in _notes(dialect):
            console.print(Text(f"  {note}"))
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
        for heading in ("flag", "option", "default", "form"):
            table.add_column(heading, overflow="fold", no_wrap=heading != "default")
        for flag in dialect.flags:
            default = dialect.default_text(flag.option)
            table.add_row(" ".join(flag.names), flag.option, default, flag.style)
        console.print(table)


def _notes(dialect: Dialect) -> Iterator[str]:
    """What else applies in a dialect."""
    yield f"step: {dialect.step_unit}; ranks that record: {dialect.ranks}"
    spoken = {flag.option for flag in dialect.flags} | {"step_unit", "ranks"}
    silent = [name for name in dialect.defaults if name not in spoken]
    if silent:
        yield f"also sets: {', '.join(f'{name}={dialect.default_text(name)}' for name in silent)}"
    for rule in dialect.rules:
        sets = ", ".join(f"{name}={dialect.text_of(name, value)}" for name, value in rule.sets)
        unless = dialect.text_of(rule.option, rule.unless)
        yield f"unless {rule.option}={unless}: {sets} ({rule.reason})"
    if dialect.needs:
        needed = ", ".join(f"--{name.replace('_', '-')}" for name in dialect.needs)
        yield f"requires, if the script has it: {needed}"
    if dialect.raises_max_steps:
        yield "max_steps is raised if it is too small for one window"
    for name in dialect.files:
        yield f"file: {name}"
