"""Trials as Markdown, for a pull request."""

from __future__ import annotations

from stepscope.report.outputs import Layout, Sink
from stepscope.report.text import markdown_text
from stepscope.report.trial.words import (
    COLUMNS,
    as_it_is,
    costs,
    lines_to_write,
    notes,
    promise_kept,
    rows,
)
from stepscope.run.trials import TrialsRecord


def write(record: TrialsRecord, sink: Sink, _layout: Layout) -> None:
    """Write what came of the trials."""
    sink.write("\n".join([*_document(record), ""]))


def trials_table(record: TrialsRecord) -> list[str]:
    """The lines of a table with a row per trial; none without trials."""
    lines = [f"| {' | '.join(map(markdown_text, row))} |" for row in rows(record)]
    head = [f"| {' | '.join(COLUMNS)} |", "|---|--:|--:|--:|---|---|---|"]
    return [*head, *lines] if lines else []


def _document(record: TrialsRecord) -> list[str]:
    lines = [f"**{markdown_text(record.verdict)}**", "", as_it_is(record)]
    lines += ["", *trials_table(record)]
    winner = record.winner
    if winner is not None:
        lines += ["", "Write:", "", "```python", *lines_to_write(winner), "```"]
        lines += [part for part in (promise_kept(winner), f"Risks: {winner.risks}") if part]
    lines += ["", *(f"* {markdown_text(note)}" for note in notes(record))]
    return [*lines, "", costs(record)]
