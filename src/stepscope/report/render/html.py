"""Documents as pages in one file: blocks as the plain values that `static/report.js` draws."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

from stepscope.analysis.selection.partition import cause_labels
from stepscope.analysis.selection.rows import Beginning
from stepscope.report import units
from stepscope.report.cells import headings
from stepscope.report.document import (
    Bars,
    Block,
    DataTable,
    Facts,
    Figure,
    Findings,
    Heading,
    Items,
    Line,
    Page,
    Section,
    ShownFinding,
    Table,
    joined,
    unstyled,
)
from stepscope.report.findings import saving
from stepscope.report.page.document import page as in_one_file
from stepscope.report.plain import plain
from stepscope.run.figures import sentence

if TYPE_CHECKING:
    from stepscope.report.outputs import Layout, Sink
    from stepscope.report.sharing import Pseudonyms

_MOST_STEPS = 12


def write(module: ModuleType, result: Any, sink: Sink, layout: Layout) -> None:
    """Write a result as a page."""
    sink.write(page_of(module, result, layout.names))


def page_of(module: ModuleType, result: Any, names: Pseudonyms | None = None) -> str:
    """A page with as many rows of each table as it can carry."""

    def content(rows: int) -> Mapping[str, Any]:
        made = _content(module.page(result, rows), rows)
        return made if names is None else names.content(plain(made))

    return in_one_file(content)


def page_of_document(title: str, document: Iterable[Block]) -> str:
    """A result that has no page of its own as one, with a section for each heading."""
    sections: list[tuple[str, list[Block]]] = [(title, [])]
    for block in document:
        if isinstance(block, Heading):
            sections.append((block.text, []))
        elif isinstance(block, Line):
            sections[-1][1].append(Line(unstyled(block.text)))
        elif isinstance(block, Table):
            texts = tuple(tuple(map(unstyled, row)) for row in block.rows)
            sections[-1][1].append(replace(block, rows=texts))
        elif isinstance(block, Facts):
            sections[-1][1].append(block)
    drawn = tuple(
        Section(f"s{at}", heading, tuple(blocks)) for at, (heading, blocks) in enumerate(sections)
    )
    return in_one_file(lambda rows: _content(Page(title, "", "", drawn), rows))


def _content(page: Page, rows: int) -> dict[str, Any]:
    sections = [_section(one, rows) for one in page.sections]
    return {
        "title": page.title,
        "kind": page.kind,
        "subtitle": page.subtitle,
        "path": page.path,
        "sections": [one for one in sections if one["blocks"]],
    }


def _section(section: Section, rows: int) -> dict[str, Any]:
    drawn = [_drawn(block, rows) for block in section.blocks if block is not None]
    return {
        "id": section.id,
        "title": section.title,
        "blocks": [one for one in drawn if one is not None],
    }


def _drawn(block: Block, rows: int) -> Mapping[str, Any] | None:
    """A block as plain values; None if there is nothing to see."""
    if isinstance(block, Line):
        return {"is": "text", "text": block.text, "kind": block.role} if block.text else None
    if isinstance(block, Items):
        return {"is": "items", "items": list(block.items)} if block.items else None
    if isinstance(block, Facts):
        kept = [[label, joined(text)] for label, text in block.pairs if text]
        return {"is": "facts", "facts": kept} if kept else None
    if isinstance(block, Table):
        return _text_table(block)
    if isinstance(block, DataTable):
        return _data_table(block, rows)
    if isinstance(block, Bars):
        parts = [{"name": one.name, "total_ns": one.total_ns} for one in block.partition.parts]
        whole = {"total_ns": block.partition.total_ns, "steps": block.partition.steps}
        return {"is": "bar", "parts": parts, **whole}
    if isinstance(block, Findings):
        if not block.found:
            text = "No rule found anything above its threshold."
            return {"is": "text", "text": text, "kind": ""}
        return {"is": "findings", "findings": [_finding(one, block) for one in block.found]}
    if isinstance(block, Figure):
        return block.drawn
    raise TypeError(type(block))


def _text_table(block: Table) -> Mapping[str, Any] | None:
    import polars as pl

    names = {column.name: column.name.replace("_", " ") for column in block.columns}
    frame = pl.DataFrame(block.rows, schema=dict.fromkeys(names, pl.String), orient="row")
    return _data_table(DataTable("", frame, labels=names), len(frame) or 1)


def _data_table(block: DataTable, rows: int) -> Mapping[str, Any] | None:
    """A table that sorts and filters; columns in which no row has a value are left out."""
    found = block.rows
    beginning = found if isinstance(found, Beginning) else Beginning.of(found, rows)
    if not beginning.total:
        return None
    names = beginning.rows.columns
    labels = {**headings(names), **block.labels}
    columns = [
        {"name": name, "label": labels[name], "number": name in beginning.numeric} for name in names
    ]
    values = [
        cause_labels(column) if name == "cause" else column
        for name, column in zip(names, beginning.rows.values, strict=True)
    ]
    return {
        "is": "table",
        "title": block.title,
        "note": "",
        "shown": block.shown,
        "columns": columns,
        "rows": [list(row) for row in zip(*values, strict=True)][:rows],
        "total": beginning.total,
    }


def _finding(one: ShownFinding, findings: Findings) -> dict[str, Any]:
    finding = one.finding
    whose = ""
    if one.where and finding.rank != findings.shown_rank:
        whose = f" of rank {finding.rank}'s {'file' if finding.is_of_whole_file else 'step'}"
    steps = ", ".join(map(str, finding.steps[:_MOST_STEPS]))
    more = " …" if len(finding.steps) > _MOST_STEPS else ""
    share = finding.saving_of_job
    if share is not None:
        rank = f"rank {finding.rank}'s" if whose else "the"
        whose = f" of {rank} recorded time"
    now_ns = (finding.saving_ns or 0) + (finding.predicted_step_ns or 0)
    if finding.saving_ns and now_ns:
        share = finding.saving_ns / now_ns
    return {
        "id": finding.id,
        "title": sentence(finding.title),
        "severity": finding.severity.value,
        "where": one.where,
        "saving": saving(finding),
        "saving_share": share,
        "up_to": finding.up_to,
        "whose": whose,
        "advice": finding.advice,
        "facts": [[item.label, units.value(item.value, item.unit)] for item in finding.evidence],
        "assumption": finding.assumption,
        "placed": finding.placed,
        "steps": steps + more,
        "page": finding.explained_by,
    }
