"""A comparison as GitHub Markdown, for a pull request."""

from __future__ import annotations

from stepscope.report.comparison.result import CheckedComparison
from stepscope.report.comparison.words import (
    COLUMNS,
    TITLES,
    cells,
    chosen_rows,
    headline,
    mean_step,
    scopes,
    steps_of,
    warnings,
)
from stepscope.report.outputs import Layout, Sink
from stepscope.report.text import markdown_text


def write(checked: CheckedComparison, sink: Sink, layout: Layout) -> None:
    """Write the comparison."""
    sink.write(comparison_to_markdown(checked, layout.rows))


def comparison_to_markdown(checked: CheckedComparison, rows: int | None) -> str:
    """The comparison, as on a terminal; below the headline what the conditions say."""
    comparison = checked.comparison
    lines = [headline(comparison), ""]
    for check in checked.checks:
        lines += [f"**{check.outcome.capitalize()}:** {markdown_text(check.reason)}", ""]
    lines += [
        f"- {word}: {markdown_text(side.path)}, {steps_of(side)}"
        for word, side in (("before", comparison.a), ("after", comparison.b))
    ]
    lines += [f"- {markdown_text(warning)}" for warning in warnings(comparison)]
    lines.append("")
    for table, title in TITLES.items():
        chosen = chosen_rows(comparison, table, rows)
        if not len(chosen):
            continue
        mean = mean_step(comparison, table)
        lines += [
            f"**{title}**{f', {mean}' if mean else ''}",
            "",
            f"| {' | '.join(COLUMNS[:-1])} | |",
            "|---|--:|--:|--:|--:|--:|---|",
        ]
        lines += [
            "| " + " | ".join(markdown_text(cell) for cell in cells(row)) + " |"
            for row in chosen.iter_rows(named=True)
        ]
        lines.append("")
    lines += [f"- {markdown_text(note)}" for note in (*scopes(comparison), *comparison.notes)]
    return "\n".join(lines).rstrip() + "\n"
