"""Documents as GitHub Markdown, for a pull request or a wiki."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from stepscope.report import units
from stepscope.report.document import (
    Bars,
    Block,
    Code,
    DataTable,
    Facts,
    Findings,
    Heading,
    Items,
    Labelled,
    Line,
    Note,
    Only,
    Remark,
    ShownFinding,
    Table,
    Title,
    joined,
    unstyled,
)
from stepscope.terminal.plain_text import printable

if TYPE_CHECKING:
    import polars as pl

    from stepscope.report.outputs import Layout, Sink

_BOLD_LEVEL = 4
_MARKDOWN = "\\`*_{}[]<>|#"
_JOINER = "\u2060"
_LINKED = re.compile(r"@(?=\w)|\b(?:https?|ftp):(?=//)|\bwww(?=\.)", re.IGNORECASE)


def write(module: ModuleType, result: Any, sink: Sink, layout: Layout) -> None:
    """Write a result in full, each block as soon as it is ready."""
    is_first = True
    for block in module.document(result, replace(layout, is_full=True)):
        if isinstance(block, Remark):
            sink.remark(block.text)
        elif lines := _lines(block):
            sink.write(("" if is_first else "\n") + "\n".join(lines) + "\n")
            is_first = False


def _lines(block: Block) -> list[str]:
    if isinstance(block, Line):
        text = unstyled(block.text).strip()
        return [markdown_text(text)] if text else []
    if isinstance(block, Title):
        return [f"# {markdown_text(block.text)}"]
    if isinstance(block, Heading):
        return _heading(block)
    if isinstance(block, Labelled):
        first, *rest = (markdown_text(unstyled(line.text)) for line in block.lines)
        lines = [f"**{block.label}**: {first}"]
        return [*lines, *(part for line in rest for part in ("", line))]
    if isinstance(block, Facts):
        return [
            f"- {markdown_text(label)}: {markdown_text(joined(text))}"
            for label, text in block.pairs
        ]
    if isinstance(block, Items):
        return [f"- {markdown_text(item)}" for item in block.items]
    if isinstance(block, Note):
        return [f"> {markdown_text(block.text)}"]
    if isinstance(block, Code):
        return ["```python", *block.lines, "```"]
    if isinstance(block, Table):
        names = [column.name for column in block.columns]
        cells = [[unstyled(cell) for cell in row] for row in block.rows]
        return _table(names, [column.is_amount for column in block.columns], cells)
    if isinstance(block, DataTable):
        return _data_table(block)
    if isinstance(block, Bars):
        partition = block.partition
        rows = [
            (
                part.name,
                units.duration(partition.per_step_ns(part)),
                units.percent(partition.share(part)),
            )
            for part in partition.parts
            if part.total_ns
        ]
        return _table(("part", "per step", "share"), (False, True, True), rows)
    if isinstance(block, Findings):
        return _findings(block)
    if isinstance(block, Only) and block.renderer == "markdown":
        return [line for one in block.blocks for line in ("", *_lines(one))][1:]
    return []


def _heading(block: Heading) -> list[str]:
    text, aside = markdown_text(block.text), markdown_text(block.aside)
    if block.level >= _BOLD_LEVEL:
        return [f"**{text}**{f', {aside}' if aside else ''}"]
    return [f"{'#' * block.level} {text}", *(["", aside] if aside else [])]


def _table(
    names: Sequence[str], are_amounts: Iterable[bool], rows: Iterable[Sequence[str]]
) -> list[str]:
    return [
        "| " + " | ".join(map(markdown_text, names)) + " |",
        "|" + "".join("--:|" if is_amount else "---|" for is_amount in are_amounts),
        *("| " + " | ".join(map(markdown_text, row)) + " |" for row in rows),
    ]


def _data_table(block: DataTable) -> list[str]:
    from stepscope.report.cells import column_shown, headings

    whole = cast("pl.DataFrame", block.rows)
    frame = (whole.head(block.most) if block.most else whole).select(
        block.names if block.is_asked else whole.columns
    )
    labels = headings(whole.columns)
    names = frame.columns
    cells = (column_shown(name, frame[name].to_list(), block.origin_ns) for name in names)
    rows = zip(*cells, strict=True)
    lines = _table(
        [labels[name] for name in names], [kind.is_numeric() for kind in frame.dtypes], rows
    )
    title = [f"### {block.title}", ""] if block.title else []
    more = len(whole) - len(frame)
    return [*title, *lines, *(["", f"and {more:,} more rows"] if more else [])]


def _findings(block: Findings) -> list[str]:
    lines = ["## Findings", ""]
    if not block.found:
        return [*lines, "None above the thresholds."]
    for number, one in enumerate(block.found, start=1):
        lines += [*_finding(number, one), ""]
    return lines[:-1]


def _finding(number: int, one: ShownFinding) -> list[str]:
    from stepscope.report.findings import saving

    finding = one.finding
    place = f" ({one.where})" if one.where else ""
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
    ]


def markdown_text(text: str) -> str:
    """Escape what Markdown would interpret.

    In a pull request, `@name` would notify somebody, and an address would become a link, even
    escaped. An invisible character in them prevents that.
    """
    clean = printable(text)
    for character in _MARKDOWN:
        clean = clean.replace(character, f"\\{character}")
    return _LINKED.sub(lambda found: f"{found[0]}{_JOINER}", clean)
