"""Documents as pages in one file: blocks as the plain values that `page/static/report.js` draws.

Style, script and data are inside, nothing is fetched, nothing of the data is run. The policy in the
page's head allows exactly this style and this script, by their digests, and no connection. The data
is JSON in a block that no browser runs, without any `<`; the script turns it into text nodes. So a
name in a trace stays a name, whatever it looks like.

The script is made of the project's own modules: each becomes a function that returns what it
exports, in the order in which they need each other. They keep to a few forms, which are checked:
imports of named things on one line, exports in front of declarations.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import json
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from importlib import resources
from types import ModuleType
from typing import TYPE_CHECKING, Any

from stepscope._version import __version__
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
from stepscope.report.plain import mapped, plain
from stepscope.run.figures import sentence
from stepscope.terminal.plain_text import printable

if TYPE_CHECKING:
    from stepscope.report.outputs import Layout, Sink
    from stepscope.report.sharing import Pseudonyms

MOST_BYTES = 3_000_000
"""What a page may weigh: it is sent by mail and attached to issues."""
ROWS = (300, 100, 30, 10)
"""Rows of each table, fewer where the page would be too heavy."""
_LONGEST_TEXT = 1000
_STYLES = ("tokens.css", "draw/draw.css", "report.css")
_IMPORT = re.compile(r'^import \{ ([^}]*) \} from "(\.[^"]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) (\w+))", re.MULTILINE)
_OTHER = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)
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
    if finding.saving_ns:
        share = finding.saving_share
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


# -- the file --------------------------------------------------------------------------------------


def in_one_file(make: Callable[[int], Mapping[str, Any]]) -> str:
    """A page of at most `MOST_BYTES`.

    Args:
        make: Gives the page's content for a number of rows of each table.
    """
    text = ""
    for rows in ROWS:
        text = _page(make(rows))
        if len(text.encode()) <= MOST_BYTES:
            break
    return text


def _page(content: Mapping[str, Any]) -> str:
    style, script, icon = _parts()
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src '{_digest(script)}'",
            f"style-src '{_digest(style)}'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    values = {**mapped(plain(content), _clean), "version": __version__}
    data = json.dumps(values, separators=(",", ":"), default=_clean)
    title = html.escape(_clean(content["title"]))
    return f"""<!doctype html>
<html lang="en" data-theme="light">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<meta name="generator" content="stepscope {__version__}">
<title>{title} - Stepscope</title>
<link rel="icon" href="{icon}">
<style>{style}</style>
</head>
<body>
<div id="app"></div>
<noscript>This page needs JavaScript. Use --format md for the same as text.</noscript>
<script type="application/json" id="data">{data.replace("<", chr(92) + "u003c")}</script>
<script>{script}</script>
</body>
</html>
"""


def _clean(value: object) -> str:
    """A text without control characters, cut to a length that a person reads."""
    text = str(value).encode("utf-8", "replace").decode()  # file names may be no text
    return printable(text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _read(path: str) -> str:
    folder = resources.files("stepscope.report").joinpath("page", "static")
    return folder.joinpath(*path.split("/")).read_text("utf-8")


def _script(entry: str) -> str:
    """A module and all that it imports, in one script.

    Raises:
        ValueError: A module has an import or export of another form, or cannot stand in a page.
    """
    numbers: dict[str, int] = {}
    pieces: list[str] = []

    def add(path: str) -> int:
        if path in numbers:
            return numbers[path]

        def imported(match: re.Match[str]) -> str:
            number = add(_resolved(path, match[2]))
            return f"const {{ {match[1].replace(' as ', ': ')} }} = module{number};"

        text = _IMPORT.sub(imported, _read(path))
        names = _EXPORT.findall(text)
        text = _EXPORT.sub("", text)
        other = _OTHER.search(text)
        if other is not None:
            raise ValueError(f"{path}: cannot be put into a page: {other[0]}")
        if re.search(r"</script|<!--", text, re.IGNORECASE):
            raise ValueError(f"{path}: '</script' and '<!--' would end the page's script")
        numbers[path] = len(numbers)
        pieces.append(
            f"const module{numbers[path]} = (() => {{ // {path}\n{text}\n"
            f"return {{ {', '.join(names)} }};\n}})();"
        )
        return numbers[path]

    add(entry)
    return '"use strict";\n' + "\n".join(pieces) + "\n"


def _resolved(path: str, target: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), target))


@functools.cache
def _parts() -> tuple[str, str, str]:
    """Style, script and icon."""
    icon = base64.b64encode(_read("icon.svg").encode()).decode()
    style = "\n".join(map(_read, _STYLES))
    return style, _script("report.js"), f"data:image/svg+xml;base64,{icon}"
