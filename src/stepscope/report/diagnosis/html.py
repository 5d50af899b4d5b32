"""The diagnosis as a page in one file, to look at, to print, and to send to a colleague."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from stepscope.advice.diagnosis import Diagnosis
from stepscope.advice.finding import Finding
from stepscope.advice.window_details import DetailedAnswer
from stepscope.analysis.questions import question
from stepscope.report import units
from stepscope.report.answer.cells import headings
from stepscope.report.diagnosis.page_ranks import (
    environment_section,
    metrics_section,
    ranks_section,
)
from stepscope.report.diagnosis.page_step import (
    compute_section,
    step_section,
    steps_section,
    typical_step_section,
)
from stepscope.report.diagnosis.words import (
    findings_alike,
    header,
    ladder_notes,
    next_limit,
    notes,
    ranks_with,
    saving,
    together,
)
from stepscope.report.outputs import Layout, Sink
from stepscope.report.page import blocks
from stepscope.report.page.document import page
from stepscope.report.scope import describe_scope
from stepscope.report.text import sentence
from stepscope.report.trial.words import COLUMNS
from stepscope.report.trial.words import rows as trial_rows

_MOST_NOTES = 200
_LADDER = (
    "The step with one more thing fixed on each line, all above it included, and what limits it "
    "then. Hatched: what that takes away."
)
_MOST_STEPS = 12
_COMMON = ("trace", "profile", "report", "chrome_trace", "traces", "output")
"""Names of files that do not say of which training they are."""
_TITLES = {
    "kernels": "Kernels",
    "operators": "Operators",
    "modules": "Modules",
    "communication": "Communication",
    "memory": "Memory",
}


def write(diagnosis: Diagnosis, sink: Sink, _layout: Layout) -> None:
    """Write the page."""
    sink.write(diagnosis_to_html(diagnosis))


def diagnosis_to_html(diagnosis: Diagnosis) -> str:
    """The page."""
    return page(lambda rows: _content(diagnosis, rows))


def _content(diagnosis: Diagnosis, rows: int) -> dict[str, Any]:
    details, left_out = _details(diagnosis, rows)
    sections = [
        _verdict(diagnosis),
        step_section(diagnosis),
        compute_section(diagnosis.shown),
        steps_section(diagnosis),
        typical_step_section(diagnosis),
        _findings(diagnosis),
        _ladder(diagnosis),
        _tried(diagnosis, rows),
        *details,
        ranks_section(diagnosis, rows),
        metrics_section(diagnosis, rows),
        environment_section(diagnosis),
        _left_out(diagnosis, left_out),
    ]
    title = _title(diagnosis.run.location)
    location = diagnosis.run.location
    return {
        "title": title,
        "kind": "Report",
        "subtitle": header(diagnosis),
        "path": "" if location == title else location,
        "sections": [one for one in sections if one["blocks"]],
    }


def _title(location: str) -> str:
    """The name of the file or directory, with the directory's where the name is everybody's."""
    path = Path(location)
    if path.name.split(".")[0] in _COMMON and path.parent.name:
        return f"{path.parent.name}/{path.name}"
    return path.name or location


def _verdict(diagnosis: Diagnosis) -> dict[str, Any]:
    """The verdict, and what its finding advises."""
    words = diagnosis.verdict
    finding = next((one for one in diagnosis.findings if words.startswith(f"{one.id}: ")), None)
    then = blocks.text(f"{next_limit(diagnosis)}.") if next_limit(diagnosis) else None
    if finding is None:
        return blocks.section("verdict", "Verdict", blocks.text(sentence(words), "verdict"), then)
    return blocks.section(
        "verdict",
        "Verdict",
        blocks.text(sentence(words.removeprefix(f"{finding.id}: ")), "verdict"),
        blocks.text(finding.advice, "lead"),
        then,
    )


def _findings(diagnosis: Diagnosis) -> dict[str, Any]:
    groups = findings_alike(diagnosis.findings, diagnosis.shown.rank)
    several = len(diagnosis.ranks) > 1
    if not groups:
        none = blocks.text("No rule found anything above its threshold.")
        return blocks.section("findings", "Findings", none)
    told = together(diagnosis)
    return blocks.section(
        "findings",
        "Findings",
        blocks.findings(
            [finding_of_page(group[0], ranks_with(group) if several else "") for group in groups]
        ),
        blocks.text(told) if told else None,
    )


def _ladder(diagnosis: Diagnosis) -> dict[str, Any]:
    """The step after each fix, down to the floor, and what that rests on."""
    rungs = diagnosis.shown.ladder.rungs
    drawn = blocks.ladder([(r.name, r.step_ns, r.limit, r.limit_in_words) for r in rungs])
    lead = blocks.text(_LADDER) if drawn else None
    told = [blocks.text(one, "note") for one in ladder_notes(diagnosis)]
    return blocks.section("ladder", "How far it can go", lead, drawn, *told)


def finding_of_page(finding: Finding, where: str) -> dict[str, Any]:
    """A finding as the page takes it."""
    steps = ", ".join(map(str, finding.steps[:_MOST_STEPS]))
    more = " …" if len(finding.steps) > _MOST_STEPS else ""
    now_ns = (finding.saving_ns or 0) + (finding.predicted_step_ns or 0)
    return {
        "id": finding.id,
        "title": sentence(finding.title),
        "severity": finding.severity.value,
        "where": where,
        "saving": saving(finding),
        "saving_share": None if not finding.saving_ns or not now_ns else finding.saving_ns / now_ns,
        "up_to": finding.up_to,
        "advice": finding.advice,
        "facts": [[one.label, units.value(one.value, one.unit)] for one in finding.evidence],
        "assumption": finding.assumption,
        "placed": finding.placed,
        "steps": steps + more,
        "page": finding.explained_by,
    }


def _tried(diagnosis: Diagnosis, rows: int) -> dict[str, Any]:
    """What trials of fixes brought, if the script was tried."""
    trials = diagnosis.run.trials
    if trials is None:
        return blocks.section("tried", "Tried")
    found = pl.DataFrame(trial_rows(trials), schema=dict.fromkeys(COLUMNS, pl.String), orient="row")
    return blocks.section(
        "tried",
        "Tried",
        blocks.text(sentence(trials.verdict)),
        blocks.table("", found, rows, labels=lambda names: dict(zip(names, names, strict=True))),
    )


def _details(diagnosis: Diagnosis, rows: int) -> tuple[list[dict[str, Any]], list[str]]:
    """Sections about the window, and what they leave out."""
    details = diagnosis.details
    if details is None:
        return [], []
    sections, left_out = [], list(details.notes)
    general = {note for one in details.answers if any(_has_rows(one)) for note in one.notes}
    missing: dict[str, list[str]] = {}
    for answer in details.answers:
        name = answer.question
        titles = question(name).titles if len(answer.tables) > 1 else {}
        found = []
        for field, table in answer.tables.items():
            if len(table.rows.columns) < 2:
                continue  # names of devices, and nothing about them
            title = titles.get(field, "")
            found.append(blocks.table_beginning(title, table, rows, labels=_labels))
            if table.total > rows:
                left_out.append(
                    f"{_TITLES[name]}: {table.total - rows:,} rows beyond the first {rows}; "
                    f"`stepscope show {name}` has them all"
                )
        if not any(found):
            reasons = [note for note in answer.notes if note not in general] or answer.notes
            for reason in reasons or ("nothing there",):
                missing.setdefault(reason, []).append(_TITLES[name])
            continue
        told = (f"Totals, not per step. {describe_scope(answer.scope)}", *answer.notes)
        words = [blocks.text(f"{sentence(one)}.", "note") for one in told]
        sections.append(blocks.section(name, _TITLES[name], *found, *words))
    left_out += [f"{', '.join(titles)}: {reason}" for reason, titles in missing.items()]
    return sections, left_out


def _has_rows(answer: DetailedAnswer) -> Iterator[bool]:
    return (bool(table.total) for table in answer.tables.values() if len(table.rows.columns) > 1)


def _labels(columns: Sequence[str]) -> Mapping[str, str]:
    return {**headings(columns), "bus_bandwidth_gb_per_s": "bus bandwidth (GB/s)"}


def _left_out(diagnosis: Diagnosis, more: Sequence[str]) -> dict[str, Any]:
    """What this page does not show: unread, unknown, excluded, cut."""
    told = [sentence(one) for one in (*notes(diagnosis), *more)]
    if len(told) > _MOST_NOTES:
        rest = len(told) - _MOST_NOTES
        told = [
            *told[:_MOST_NOTES],
            f"And {rest:,} more notes: see `stepscope report --format json`",
        ]
    if len(diagnosis.ranks) > 1 and diagnosis.details is not None:
        told.append(
            f"Step, kernels, operators and the other tables are those of rank "
            f"{diagnosis.shown.rank}; `stepscope show` has those of all"
        )
    return blocks.section("left-out", "What was left out", blocks.items(told))
