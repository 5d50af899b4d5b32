"""The doctor's checks on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from stepscope.doctor.check import Check, State, count_by_state
from stepscope.report.console import width_for
from stepscope.report.outputs import Layout, Sink
from stepscope.run.figures import plural

_STYLES = {
    State.OK: "green",
    State.WARNING: "bold yellow",
    State.PROBLEM: "bold red",
    State.ABSENT: "dim",
}
_SIDE_BY_SIDE_WIDTH = 76


def write(checks: Sequence[Check], sink: Sink, _layout: Layout) -> None:
    """Print the checks."""
    print_checks(checks, sink.console(width=width_for(sink)))


def print_checks(checks: Sequence[Check], console: Console) -> None:
    """Print the verdict, then the checks by area, with remedies for those that are not ok."""
    console.print(_verdict(checks))
    for area, members in groupby(checks, key=lambda check: check.area):
        console.print()
        console.print(Text(area, "bold"))
        if console.width >= _SIDE_BY_SIDE_WIDTH:
            console.print(Padding(_table(list(members)), (0, 0, 0, 2)))
        else:
            for check in members:
                _print_stacked(check, console)


def _verdict(checks: Sequence[Check]) -> Text:
    counts = count_by_state(checks)
    problems, warnings = counts[State.PROBLEM.value], counts[State.WARNING.value]
    found = [
        plural(count, word)
        for count, word in ((problems, "problem"), (warnings, "warning"))
        if count
    ]
    if problems:
        names = ", ".join(check.name for check in checks if check.state is State.PROBLEM)
        return Text(f"{', '.join(found)}. Fix first: {names}.", "bold red")
    areas = {check.area for check in checks if check.state is State.OK}
    ready = (
        "Ready to record and read." if "recording" in areas else "Ready to read, but not to record."
    )
    return Text(
        f"{ready} {found[0]}." if found else ready, "bold yellow" if found else "bold green"
    )


def _table(checks: Sequence[Check]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("state", no_wrap=True, width=7)
    table.add_column("name", width=24)
    table.add_column("detail", overflow="fold")
    for check in checks:
        table.add_row(_state(check), Text(check.name), _found(check))
    return table


def _print_stacked(check: Check, console: Console) -> None:
    head = Text.assemble("  ", _state(check), "  ", check.name)
    console.print(head)
    console.print(Padding(_found(check), (0, 0, 0, 4)))


def _state(check: Check) -> Text:
    return Text(check.state.value, _STYLES[check.state])


def _found(check: Check) -> Text:
    quiet = "dim" if check.state in {State.OK, State.ABSENT} else ""
    text = Text(check.detail, quiet)
    if check.remedy:
        text.append("\n→ ", "bold" if not quiet else "dim")
        text.append(check.remedy, "bold" if not quiet else "dim")
    return text
