"""The doctor's checks by area, below a verdict."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from stepscope._version import __version__
from stepscope.doctor.check import Check, State, count_by_state, worst
from stepscope.report.document import (
    LINE_END,
    Block,
    Column,
    Gap,
    Line,
    Span,
    StyledText,
    Table,
)
from stepscope.report.plain import plain
from stepscope.run.figures import plural

if TYPE_CHECKING:
    from stepscope.report.outputs import Layout

_STYLES = {
    State.OK: "green",
    State.WARNING: "bold yellow",
    State.PROBLEM: "bold red",
    State.ABSENT: "dim",
}
_SIDE_BY_SIDE_WIDTH = 76
_COLUMNS = (Column("state", wraps=False, width=7), Column("name", width=24), Column("detail"))


def document(checks: Sequence[Check], _layout: Layout) -> Iterator[Block]:
    """The verdict, then the checks by area, with remedies for those that are not ok."""
    yield _verdict(checks)
    for area, members in groupby(checks, key=lambda check: check.area):
        yield Gap()
        yield Line(area, "bold")
        yield Table(
            _COLUMNS,
            tuple(
                ((Span(one.state.value, _STYLES[one.state]),), one.name, _found(one))
                for one in members
            ),
            indent=2,
            has_heading=False,
            stacks_below=_SIDE_BY_SIDE_WIDTH,
        )


def _verdict(checks: Sequence[Check]) -> Line:
    counts = count_by_state(checks)
    problems, warnings = counts[State.PROBLEM.value], counts[State.WARNING.value]
    found = [
        plural(count, word)
        for count, word in ((problems, "problem"), (warnings, "warning"))
        if count
    ]
    if problems:
        names = ", ".join(check.name for check in checks if check.state is State.PROBLEM)
        return Line(f"{', '.join(found)}. Fix first: {names}.", "bold red")
    areas = {check.area for check in checks if check.state is State.OK}
    ready = (
        "Ready to record and read." if "recording" in areas else "Ready to read, but not to record."
    )
    return Line(
        f"{ready} {found[0]}." if found else ready, f"bold {'yellow' if found else 'green'}"
    )


def _found(check: Check) -> StyledText:
    quiet = "dim" if check.state in {State.OK, State.ABSENT} else ""
    remedy = (LINE_END, Span(f"→ {check.remedy}", quiet or "bold")) if check.remedy else ()
    return (Span(check.detail, quiet), *remedy)


def bug_report(checks: Sequence[Check]) -> str:
    """Versions and checks as text to paste; extras that are absent are left out."""
    shown = [one for one in checks if one.state is not State.ABSENT or one.area != "packages"]
    width = max(len(check.name) for check in shown)
    lines = [f"{one.state.value:<7}  {one.name:<{width}}  {one.detail}" for one in shown]
    versions = f"stepscope {__version__} on {platform.platform()}"
    return "\n".join(("```", versions, str(_verdict(checks).text), *lines, "```", ""))


def to_json(checks: Sequence[Check]) -> dict[str, Any]:
    """Plain values, as `stepscope doctor --format json` prints them."""
    return {
        "worst": worst(checks).value,
        "counts": count_by_state(checks),
        "checks": plain(checks),
    }
