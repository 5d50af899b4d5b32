"""The diagnosis as GitHub Markdown, for a pull request or a wiki."""

from __future__ import annotations

from stepscope.advice.diagnosis import Diagnosis
from stepscope.advice.finding import Finding
from stepscope.advice.rank_summary import RankSummary
from stepscope.report import units
from stepscope.report.diagnosis.words import (
    besides,
    between_ranks,
    communication,
    compute_rows,
    compute_title,
    findings_alike,
    header,
    ladder_notes,
    ladder_rows,
    next_limit,
    notes,
    odd_ranks,
    partition_basis,
    partition_scope,
    rank_columns,
    rank_rows,
    ranks_with,
    saving,
    step_basis,
    step_time,
    together,
    work,
)
from stepscope.report.outputs import Layout, Sink
from stepscope.report.text import markdown_text
from stepscope.report.trial.markdown import trials_table


def write(diagnosis: Diagnosis, sink: Sink, _layout: Layout) -> None:
    """Write the diagnosis."""
    sink.write(diagnosis_to_markdown(diagnosis))


def diagnosis_to_markdown(diagnosis: Diagnosis) -> str:
    """The diagnosis, as on a terminal."""
    shown = diagnosis.shown
    lines = [
        f"# {markdown_text(diagnosis.run.location)}",
        "",
        markdown_text(header(diagnosis)),
        "",
        f"**Verdict**: {markdown_text(diagnosis.verdict)}",
        "",
        *_next_limit(diagnosis),
        f"**Step**: {step_time(shown)}, {step_basis(diagnosis, shown)}",
    ]
    if work(shown):
        lines += ["", f"**Work**: {markdown_text(work(shown))}"]
    if shown.steps is not None and shown.steps.other_kinds:
        lines += ["", besides(shown.steps)]
    lines += _partition(shown)
    lines += _compute(shown)
    if len(diagnosis.ranks) > 1:
        lines += _ranks(diagnosis)
    lines += ["", "## Findings", ""]
    groups = findings_alike(diagnosis.findings, diagnosis.shown.rank)
    if not groups:
        lines.append("None above the thresholds.")
    for number, group in enumerate(groups, start=1):
        where = ranks_with(group) if len(diagnosis.ranks) > 1 else ""
        lines += finding_lines(number, group[0], where)
    overlap = together(diagnosis)
    if overlap:
        lines += [markdown_text(overlap), ""]
    lines += _ladder(diagnosis)
    trials = diagnosis.run.trials
    if trials is not None:
        lines += ["## Tried", "", markdown_text(trials.verdict), "", *trials_table(trials)]
    told = notes(diagnosis)
    if told:
        lines += ["", "## Notes", "", *(f"- {markdown_text(note)}" for note in told)]
    return "\n".join(lines).rstrip() + "\n"


def _next_limit(diagnosis: Diagnosis) -> list[str]:
    words = next_limit(diagnosis)
    return [f"**Then**: {markdown_text(words)}", ""] if words else []


def _ladder(diagnosis: Diagnosis) -> list[str]:
    rows = ladder_rows(diagnosis)
    if not rows:
        return []
    return [
        "## How far it can go",
        "",
        "| with this fixed, too | step | of today's | then it is limited by |",
        "|---|--:|--:|---|",
        *(f"| {' | '.join(map(markdown_text, row))} |" for row in rows),
        "",
        *(f"- {markdown_text(note)}" for note in ladder_notes(diagnosis)),
        "",
    ]


def _compute(rank: RankSummary) -> list[str]:
    rows = compute_rows(rank)
    if not rows:
        return []
    title, _, amount = compute_title(rank).partition("   ")
    lines = ["", f"## {title}", "", f"{amount}", ""]
    return lines + [f"- {label}: {markdown_text(text)}" for label, text in rows]


def _partition(rank: RankSummary) -> list[str]:
    partition = rank.partition
    if partition is None:
        return []
    lines = [
        "",
        "## Where the step goes",
        "",
        markdown_text(partition_basis(rank)),
        "",
        "| part | per step | share |",
        "|---|--:|--:|",
    ]
    lines += [
        f"| {markdown_text(part.name)} | {units.duration(partition.per_step_ns(part))} "
        f"| {units.percent(partition.share(part))} |"
        for part in partition.parts
        if part.total_ns
    ]
    if communication(rank):
        lines += ["", markdown_text(communication(rank))]
    if partition_scope(rank):
        lines += ["", markdown_text(partition_scope(rank))]
    return lines


def _ranks(diagnosis: Diagnosis) -> list[str]:
    columns = rank_columns(diagnosis)
    lines = ["", "## Ranks", ""]
    told = between_ranks(diagnosis)
    if told:
        lines += [markdown_text(told), ""]
    lines.append("| " + " | ".join(columns) + " |")
    lines.append("|" + "--:|" * len(columns))
    lines += ["| " + " | ".join(row) + " |" for row in rank_rows(diagnosis)]
    odd = odd_ranks(diagnosis)
    return [*lines, *([""] if odd else []), *(f"- {markdown_text(line)}" for line in odd)]


def finding_lines(number: int, finding: Finding, where: str) -> list[str]:
    """A finding under a heading of its own."""
    place = f" ({where})" if where else ""
    title = f"{finding.severity.value.upper()} {finding.id}: {markdown_text(finding.title)}"
    lines = [
        f"### {number}. {title}{place}",
        "",
        f"- saving: {markdown_text(saving(finding))}",
    ]
    if finding.assumption:
        lines.append(f"- if: {markdown_text(finding.assumption)}")
    if finding.placed:
        lines.append(f"- placed: {markdown_text(finding.placed)}")
    lines.append("- seen:")
    lines += [
        f"  - {markdown_text(item.label)}: {markdown_text(units.value(item.value, item.unit))}"
        for item in finding.evidence
    ]
    if finding.steps:
        lines.append(f"- steps: {', '.join(map(str, finding.steps))}")
    return [
        *lines,
        f"- do: {markdown_text(finding.advice)}",
        f"- more: `{finding.explained_by}`",
        "",
    ]
