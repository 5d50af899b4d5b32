"""Documents on a terminal, and as plain text in files and pipes."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from stepscope.report import units
from stepscope.report.console import UNLIMITED, width_for
from stepscope.report.document import (
    LINE_END,
    Bars,
    Block,
    Code,
    DataTable,
    Facts,
    Figure,
    Findings,
    Gap,
    Heading,
    Items,
    Labelled,
    Line,
    Look,
    Note,
    Only,
    Remark,
    ShownFinding,
    StyledText,
    Table,
    Title,
    joined,
)
from stepscope.terminal.plain_text import printable, shortened, without_namespaces

if TYPE_CHECKING:
    import polars as pl

    from stepscope.advice.finding import Finding
    from stepscope.report.outputs import Layout, Sink

_STYLES = {
    "high": "bold red",
    "medium": "bold yellow",
    "low": "bold cyan",
    "info": "bold",
}
_BAR_WIDTH = 24
_BAR_SHARE = 0.24
_WIDEST_BAR = 60
"""Of a wide terminal, what a bar may take."""
BAR_COLOURS = {
    "compute": 68,
    "forward": 68,
    "between forward and backward": 103,
    "backward": 31,
    "optimizer": 130,
    "communication": 166,
    "exposed communication": 166,
    "exposed copies": 29,
    "input": 160,
    "idle: input": 160,
    "idle: launches and dispatch": 95,
    "idle: Python": 94,
    "idle: synchronisation": 133,
}
"""Colour of a part by its number among 256: each has a contrast of 3 on black and on white."""
OTHER_IDLE, OTHER_PART = 97, 243
_SHORTEST_BAR = 4
_SHORTEST_NAME = 8
_SHORTEST_HEADING = 6
_SHORTEST_LINE = 20
_SHORTEST_CUT = 12
_MOST_SHORT_FINDINGS = 6
_MOST_STEPS = 8
_LONG_NAME = 24
_UNBREAKABLE = "\u00a0"


def write(module: ModuleType, result: Any, sink: Sink, layout: Layout) -> None:
    """Print a result, each block as soon as it is ready."""
    wraps = layout.is_full and getattr(module, "FULL_WRAPS", False)
    console = sink.console(width=None if wraps else width_for(sink))
    for block in module.document(result, layout):
        if isinstance(block, Remark):
            sink.remark(block.text)
        else:
            print_block(block, console)


def show_live(
    look: Callable[[], Iterable[Block]], console: Console, interval_s: float, count: int | None
) -> None:
    """Show blocks that change until interrupted; once if the console is not a terminal.

    Args:
        look: Gets the blocks of the moment.
        count: Number of updates; None for no limit.
    """

    def drawn() -> Group:
        return Group(*(one for block in look() for one, _ in _drawn(block, console)))

    if not console.is_terminal:
        # Averages need two samples; this is the first.
        drawn()
        time.sleep(min(1.0, interval_s))
        console.print(drawn())
        return
    shown = 0
    with Live(drawn(), console=console, auto_refresh=False) as live:
        while count is None or shown < count:
            time.sleep(interval_s)
            live.update(drawn(), refresh=True)
            shown += 1


def print_block(block: Block, console: Console) -> None:
    """Print one block."""
    for renderable, is_whole in _drawn(block, console):
        console.print(renderable, soft_wrap=is_whole)


def _drawn(block: Block, console: Console) -> Iterator[tuple[RenderableType, bool]]:
    """What to print of a block, and whether its lines stay whole."""
    if isinstance(block, Line):
        yield _line(block), block.is_whole
    elif isinstance(block, Gap):
        yield Text(), False
    elif isinstance(block, Title):
        yield text_of(block.text, "dim"), True
    elif isinstance(block, Heading):
        text, aside = Text(printable(block.text), "bold"), printable(block.aside)
        beside = Text.assemble(text, (f"   {aside}", "dim")) if aside else text
        if aside and beside.cell_len > console.width:
            yield text, False
            yield _indented(Text(aside, "dim"), 2), False
        else:
            yield beside, False
    elif isinstance(block, Labelled):
        lines = [_line(line) for line in block.lines]
        yield _beside(block.label, lines[0] if len(lines) == 1 else Group(*lines)), False
    elif isinstance(block, Facts):
        yield from _facts(block, console)
    elif isinstance(block, Items):
        yield from _items(block)
    elif isinstance(block, Note):
        yield Text.assemble(("Note: ", "yellow"), printable(block.text)), False
    elif isinstance(block, Code):
        for line in block.lines:
            yield text_of(f"  {line}"), True
    elif isinstance(block, Table):
        yield from _table(block, console)
    elif isinstance(block, DataTable):
        yield from _data_table(block, console)
    elif isinstance(block, Bars):
        yield _indented(_bars(block, console), 2), False
    elif isinstance(block, Findings):
        yield from _short_findings(block, console) if block.is_short else _full_findings(block)
    elif isinstance(block, Only):
        for one in block.blocks if block.renderer == "terminal" else ():
            yield from _drawn(one, console)
    elif not isinstance(block, Figure):
        raise TypeError(type(block))


def text_of(text: StyledText, style: str = "") -> Text:
    """Text that may come from a file: no markup, no control characters but `LINE_END`."""
    if isinstance(text, str):
        return Text(printable(text), style)
    spans = (span.text if span is LINE_END else text_of(span.text, span.style) for span in text)
    return Text.assemble(*spans, style=style)


def _line(line: Line) -> RenderableType:
    return _indented(text_of(line.text, line.style), line.indent)


def _indented(content: RenderableType, indent: int) -> RenderableType:
    return Padding(content, (0, 0, 0, indent), expand=False) if indent else content


def _beside(label: str, content: RenderableType) -> RichTable:
    """A label beside its content, so that wrapped lines stay aligned."""
    table = RichTable.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold", min_width=7)
    table.add_column()
    table.add_row(label, content)
    return table


def _items(block: Items) -> Iterator[tuple[RenderableType, bool]]:
    items = block.items
    if block.most is not None and len(items) > block.most:
        rest = len(items) - block.most
        items = (*items[: block.most], f"and {rest} more: see --format json")
    for item in items:
        yield _indented(text_of(item, block.style), block.indent), False


def _facts(block: Facts, console: Console) -> Iterator[tuple[RenderableType, bool]]:
    if block.width is None:
        table = RichTable.grid(padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True, style="dim")
        table.add_column()
        for label, text in block.pairs:
            table.add_row(text_of(label), text_of(joined(text)))
        yield _indented(table, 2), False
        return
    for label, text in block.pairs:
        lines = printable(joined(text))
        if not isinstance(text, str):
            width = max(console.width - block.width, _SHORTEST_LINE)
            parts = ", ".join(part.replace(" ", _UNBREAKABLE) for part in text)
            lines = f"\n{' ' * block.width}".join(textwrap.wrap(parts, width))
            lines = lines.replace(_UNBREAKABLE, " ")
        yield Text(f"{label + ':':<{block.width}}{lines}"), True


def _table(table: Table, console: Console) -> Iterator[tuple[RenderableType, bool]]:
    if console.width < table.stacks_below:
        for row in table.rows:
            *names, last = map(text_of, row)
            yield Text("  ").join([Text(), *names]), False
            yield _indented(last, 4), False
        return
    if table.gives_way:
        table = _fitted(table, console.width - table.indent)
    # Where no line is cut, a text of many words would make the whole table as wide as itself.
    is_trailed = table.trails and console.width >= UNLIMITED
    columns = table.columns[:-1] if is_trailed else table.columns
    drawn = _empty_table(table.look, table.gap, has_heading=table.has_heading)
    texts = [[_plain(row[at]) for row in table.rows] for at in range(len(columns))]
    wide = [max(map(len, [column.name, *of])) for column, of in zip(columns, texts, strict=True)]
    is_narrow = table.look is Look.SPACED and sum(wide) + table.gap * len(wide) > console.width
    for column, of in zip(columns, texts, strict=True):
        heading = printable(column.name)
        if is_narrow:
            shortest = max(max(map(len, of), default=0), _SHORTEST_HEADING)
            heading = "\n".join(textwrap.wrap(heading, shortest))
        drawn.add_column(
            Text(heading),
            justify="right" if column.is_amount else "left",
            no_wrap=not column.wraps,
            # Of what is broken, no part is lost.
            overflow="fold" if table.look is not Look.RULED else "ellipsis",
            width=column.width,
            min_width=column.least,
        )
    for row, style in zip(table.rows, table.styles or [""] * len(table.rows), strict=True):
        drawn.add_row(*(text_of(cell) for cell in row[: len(columns)]), style=style)
    if is_trailed:
        behind = [_plain(row[-1]) for row in table.rows]
        yield from _trailed(drawn, table.columns[-1].name, behind, console, table.gap)
    else:
        yield _indented(drawn, table.indent), False


def _empty_table(look: Look, gap: int, *, has_heading: bool = True) -> RichTable:
    if look is Look.PLAIN:
        return RichTable(
            box=None,
            pad_edge=False,
            padding=(0, gap, 0, 0),
            header_style="dim",
            show_header=has_heading,
        )
    # The line of the box takes one column.
    padding = (0, gap // 2, 0, (gap - 1) // 2) if gap > 2 else (0, 0, 0, gap - 1)
    return RichTable(
        box=box.SIMPLE_HEAD, pad_edge=False, show_edge=look is Look.SPACED, padding=padding
    )


def _fitted(table: Table, width: int) -> Table:
    """The table as it fits: columns without texts go, then some give way, then names are cut."""
    columns = [[_plain(row[at]) for row in table.rows] for at in range(len(table.columns))]
    names = [column.name for column in table.columns]
    wide = [max(map(len, [name, *of])) for name, of in zip(names, columns, strict=True)]
    shown = [at for at, texts in enumerate(columns) if any(texts)]

    def rest() -> int:
        return sum(wide[at] + table.gap for at in shown[1:])

    for name in table.gives_way:
        if _SHORTEST_CUT + rest() > width:
            shown = [at for at in shown if names[at] != name]
    first = shortened(columns[0], max(_SHORTEST_CUT, width - rest()))
    rows = (
        (name, *(row[at] for at in shown[1:])) for name, row in zip(first, table.rows, strict=True)
    )
    return replace(table, columns=tuple(table.columns[at] for at in shown), rows=tuple(rows))


def _plain(text: StyledText) -> str:
    return text_of(text).plain


def _trailed(
    table: RichTable, label: str, texts: Sequence[str], console: Console, gap: int
) -> Iterator[tuple[RenderableType, bool]]:
    """A table with a column of whole texts behind it, to which nothing is aligned."""
    with console.capture() as captured:
        console.print(table)
    heading, rule, *rows = captured.get().removesuffix("\n").split("\n")
    space = " " * gap
    lines = [f"{heading}{space}{label}", rule.rstrip() + rule.rstrip()[-1] * (gap + len(label))]
    lines += [f"{row}{space}{text}" for row, text in zip(rows, texts, strict=True)]
    for line in lines:
        yield Text.from_ansi(line), True


def _data_table(block: DataTable, console: Console) -> Iterator[tuple[RenderableType, bool]]:
    from stepscope.report.columns import GAP, fit, to_trail

    whole = cast("pl.DataFrame", block.rows)
    frame = whole.head(block.most) if block.most else whole
    names = block.names or tuple(frame.columns)
    title = f"{block.title} ({len(whole):,})" if len(whole) > 1 else block.title
    yield Text(printable(title), "bold"), False
    is_limited = console.width < UNLIMITED
    cells = _cells(frame, names, block.origin_ns, is_shortened=is_limited)
    fitted = fit(frame, cells, console.width, may_drop=not block.is_asked)
    for columns_of_block in fitted.blocks:
        trailing = None
        if not is_limited and not block.is_asked:
            trailing = to_trail(columns_of_block, fitted.widths)
        drawn = _empty_table(Look.RULED, GAP)
        shown = [name for name in columns_of_block if name != trailing]
        for name in shown:
            justify = "right" if frame[name].dtype.is_numeric() else "left"
            drawn.add_column(Text(fitted.labels[name]), justify=justify, no_wrap=True)  # type: ignore[arg-type]
        columns = [shortened(cells[name], fitted.widths[name]) for name in shown]
        for row in zip(*columns, strict=True):
            drawn.add_row(*map(Text, row))
        if trailing is None:
            yield drawn, False
        else:
            yield from _trailed(drawn, fitted.labels[trailing], cells[trailing], console, GAP)
    remarks = []
    if len(whole) > len(frame):
        remarks.append(f"{units.plural(len(whole) - len(frame), 'more row')}: --rows all")
    if left_out := len(frame.columns) - len(names) + fitted.left_out:
        remarks.append(f"{units.plural(left_out, 'more column')}: --columns all, or --format json")
    if remarks:
        yield _indented(Text("; ".join(remarks), "dim"), 2), False


def _cells(
    frame: pl.DataFrame, names: Sequence[str], origin_ns: int, *, is_shortened: bool
) -> Mapping[str, list[str]]:
    from stepscope.report.cells import column_shown

    def text(cell: str) -> str:
        found = printable(cell)
        # The prefix that nearly all of torch's kernels share says nothing.
        return without_namespaces(found) if is_shortened and len(found) > _LONG_NAME else found

    return {
        name: list(map(text, column_shown(name, frame[name].to_list(), origin_ns)))
        for name in names
    }


def _bars(block: Bars, console: Console) -> RichTable:
    """The parts as bars. Small ones are shown together, so that all add up.

    In a narrow terminal bars give way first, then names; numbers never do.
    """
    partition = block.partition
    parts = [part for part in partition.parts if part.total_ns]
    small = [part for part in parts if partition.share(part) < block.least]
    small = small if len(small) > 1 else []
    rows = [
        (part.name, partition.share(part), partition.per_step_ns(part))
        for part in parts
        if part not in small
    ]
    if small:
        share = sum(partition.share(part) for part in small)
        per_step_ns = sum(partition.per_step_ns(part) for part in small)
        rows.append((f"{len(small)} smaller parts", share, per_step_ns))
    times = [units.duration(per_step_ns) for _, _, per_step_ns in rows]
    shares = [units.percent(share) for _, share, _ in rows]
    names = [printable(name) for name, _, _ in rows]
    gap = 2
    numbers = sum(max(map(len, texts), default=0) + gap for texts in (times, shares))
    longest = max(map(len, names), default=0)
    width = console.width - 2  # they are indented
    # A file is read anywhere.
    on_screen = round(width * _BAR_SHARE) if console.width < UNLIMITED else 0
    widest = min(max(_BAR_WIDTH, on_screen), _WIDEST_BAR)
    bar_width = min(width - numbers - longest - gap, widest)
    bar_width = bar_width if bar_width >= _SHORTEST_BAR else 0
    names = shortened(names, max(width - numbers, _SHORTEST_NAME))
    table = _empty_table(Look.PLAIN, gap, has_heading=False)
    table.add_column("part", no_wrap=True)
    if bar_width:
        table.add_column("bar", no_wrap=True)
    table.add_column("per step", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    has_colours = console.color_system in {"256", "truecolor"}
    for name, (part, share, _), *numbers_of_row in zip(names, rows, times, shares, strict=True):
        bar = "█" * round(share * bar_width) or "▏"
        other = OTHER_IDLE if part.startswith("idle") else OTHER_PART
        number = BAR_COLOURS.get(part, other)
        # Of 16 colours, the nearest could be one that a light terminal does not show.
        colour = f"color({number})" if has_colours else "blue"
        bars = [Text(bar.ljust(bar_width), colour)] if bar_width else []
        table.add_row(Text(name), *bars, *numbers_of_row)
    return table


def _no_findings() -> Text:
    return Text.assemble(("Findings ", "bold"), ("none above the thresholds", "dim"))


def _head(number: int, finding: Finding) -> Text:
    return Text.assemble(
        f"{number}. ",
        (finding.severity.value.upper(), _STYLES[finding.severity.value]),
        "  ",
        (finding.id, "bold"),
        f"  {printable(finding.title)}",
    )


def _hanging(number: int, title: Text, console: Console | None = None) -> RenderableType:
    """A numbered title: what does not fit into the first line continues beside the number."""
    if console is not None and console.width >= UNLIMITED:
        return _whole(title, console)
    place = len(f"{number}. ")
    head = RichTable.grid(padding=(0, 1, 0, 0))
    head.add_row(title[: place - 1], title[place:])
    return head


def _whole(text: Text, console: Console) -> Text:
    """A text that wraps; in a file or pipe it is one line."""
    text.no_wrap = console.width >= UNLIMITED
    return text


def _short_findings(block: Findings, console: Console) -> Iterator[tuple[RenderableType, bool]]:
    """The first findings: what is wrong, then what it saves and what to do."""
    from stepscope.report.findings import short_saving

    if not block.found:
        yield _no_findings(), False
        return
    yield Text("Findings", "bold"), False
    for number, one in enumerate(block.found[:_MOST_SHORT_FINDINGS], start=1):
        finding = one.finding
        whose = f"rank {finding.rank}'s " if finding.rank != block.shown_rank else ""
        advice = finding.advice.partition(". ")[0].removesuffix(".")
        placed = f"  ({finding.placed})" if finding.placed else ""
        style = "" if not finding.is_estimated else "green"
        second = Text.assemble(
            (short_saving(finding, whose), style) if block.of_steps else "",
            (printable(placed), "dim"),
            f"{'  ' if block.of_steps else ''}{printable(advice)}",
        )
        yield _indented(_hanging(number, _head(number, finding), console), 2), False
        yield _indented(_whole(second, console), 5), False
    rest = block.found[_MOST_SHORT_FINDINGS:]
    if rest:
        names = ", ".join(one.finding.id for one in rest)
        yield _indented(_whole(Text(f"and {len(rest)} more: {names}", "dim"), console), 2), False
    yield Text(), False


def _full_findings(block: Findings) -> Iterator[tuple[RenderableType, bool]]:
    if not block.found:
        yield _no_findings(), False
        return
    yield Text("Findings", "bold"), False
    for number, one in enumerate(block.found, start=1):
        yield _finding(number, one), False


def _finding(number: int, one: ShownFinding) -> RenderableType:
    from stepscope.report.findings import saving

    finding, title = one.finding, _head(number, one.finding)
    if one.where:
        title.append(f"  ({one.where})", "dim")
    head = _hanging(number, title)
    table = RichTable.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column()
    promised, sign, change = saving(finding).partition(": ")
    style = "" if not finding.is_estimated else "bold green"
    table.add_row("saving", Text.assemble((promised, style), sign, change))
    if finding.assumption:
        table.add_row("if", text_of(finding.assumption))
    if finding.placed:
        table.add_row("placed", text_of(finding.placed))
    evidence = RichTable.grid(padding=(0, 2, 0, 0))
    evidence.add_column()  # on a narrow terminal, labels wrap before values vanish
    evidence.add_column(overflow="fold")  # of a long name, no part is lost
    for item in finding.evidence:
        evidence.add_row(text_of(item.label), text_of(units.value(item.value, item.unit)))
    table.add_row("seen", evidence)
    if finding.steps:
        more = " …" if len(finding.steps) > _MOST_STEPS else ""
        table.add_row("steps", Text(", ".join(map(str, finding.steps[:_MOST_STEPS])) + more))
    table.add_row("do", text_of(finding.advice))
    table.add_row("more", Text(finding.explained_by, "dim"))
    return Padding(Group(head, Padding(table, (0, 0, 0, 3))), (0, 0, 1, 2))
