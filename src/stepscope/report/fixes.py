"""The fixes that can be tried, each with the findings that it answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from stepscope.report.document import Block, Items, Line, Span
from stepscope.report.plain import plain

if TYPE_CHECKING:
    from stepscope.report.outputs import Layout
    from stepscope.trial.fixes import Fix


def document(fixes: Sequence[Fix], _layout: Layout) -> Iterator[Block]:
    """Each fix, what it applies to, and its risks."""
    for fix in fixes:
        asked = "   only if named" if fix.only_if_asked else ""
        yield Line((Span(fix.name, "bold"), Span(f"  {fix.title}"), Span(asked, "dim")))
        about = (
            f"answers: {', '.join(fix.answers)}",
            f"applies to: {fix.applies_to}",
            f"risks: {fix.risks}",
        )
        yield Items(about, indent=2, style="dim")


def to_json(fixes: Sequence[Fix]) -> dict[str, Any]:
    """Each fix as plain values."""
    names = ("name", "title", "answers", "applies_to", "risks", "group", "only_if_asked")
    return {"fixes": [{name: plain(getattr(fix, name)) for name in names} for fix in fixes]}
