"""The diagnosis on a terminal: the verdict, where the step goes, and what to change."""

from __future__ import annotations

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from stepscope.advice.diagnosis import Diagnosis
from stepscope.advice.finding import Finding, Severity
from stepscope.advice.rank_summary import RankSummary
from stepscope.analysis.selection.partition import Partition
from stepscope.report import units
from stepscope.report.console import UNLIMITED, width_for
from stepscope.report.diagnosis.words import (
    MOST_RANKS,
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
    short_saving,
    step_basis,
    step_time,
    together,
    work,
)
from stepscope.report.metrics.terminal import print_metrics
from stepscope.report.outputs import Layout, Sink
from stepscope.report.text import shortened
from stepscope.report.trial.terminal import print_trials
from stepscope.run.figures import significant
from stepscope.run.plain_text import printable

_STYLES = {
    Severity.HIGH: "bold red",
    Severity.MEDIUM: "bold yellow",
    Severity.LOW: "bold cyan",
    Severity.INFO: "bold",
}
_BAR_WIDTH = 24
_SHORTEST_BAR = 4
_SHORTEST_NAME = 8
_GAP = 2
_MOST_NOTES = 5
_MOST_SHORT_FINDINGS = 6
_MOST_SHORT_NOTES = 2
_MOST_SHORT_ODD = 3
_SMALL_PART = 0.01


def write(diagnosis: Diagnosis, sink: Sink, layout: Layout) -> None:
    """Print the diagnosis: on one screen, or in full."""
    if layout.is_full:
        print_diagnosis(diagnosis, sink.console())
    else:
        print_summary(diagnosis, sink.console(width=width_for(sink)))


def print_summary(diagnosis: Diagnosis, console: Console) -> None:
    """Print what fits a screen: verdict, step, partition, and the findings in two lines each."""
    shown = diagnosis.shown
    _print_head(diagnosis, console)
    if shown.partition is not None:
        console.print()
        title = Text.assemble(
            ("Where the step goes", "bold"), (f"   {printable(partition_basis(shown))}", "dim")
        )
        console.print(cut_line(title, console))
        console.print(_indented(_bars(shown.partition, console.width - 2, _SMALL_PART)))
        if communication(shown):
            console.print(Padding(Text(communication(shown), "dim"), (0, 0, 0, 2)))
    told = [line for line in (between_ranks(diagnosis), *odd_ranks(diagnosis)) if line]
    if len(diagnosis.ranks) > 1 and told:
        console.print()
        lines = [_plain(line) for line in told[:_MOST_SHORT_ODD]]
        console.print(beside("Ranks", Group(*lines)))
    console.print()
    print_short_findings(diagnosis.findings, shown.rank, console)
    _print_trials(diagnosis, console)
    problems = notes(diagnosis)
    for note in problems[:_MOST_SHORT_NOTES]:
        console.print(cut_line(Text.assemble(("Note: ", "yellow"), _plain(note)), console))
    more = ["evidence", "assumptions", "advice in full"]
    if len(diagnosis.ranks) > 1:
        more.append("each rank")
    if len(problems) > _MOST_SHORT_NOTES:
        more.append(units.plural(len(problems) - _MOST_SHORT_NOTES, "more note"))
    console.print(cut_line(Text(f"--full shows {', '.join(more)}", "dim"), console))


def _print_head(diagnosis: Diagnosis, console: Console) -> None:
    console.print(_plain(diagnosis.run.location, "dim"), soft_wrap=True)
    console.print(_plain(header(diagnosis), "dim"))
    console.print()
    console.print(beside("Verdict", _plain(diagnosis.verdict, "bold")))
    if next_limit(diagnosis):
        console.print(beside("Then", _plain(next_limit(diagnosis))))
    console.print()
    console.print(_step(diagnosis, diagnosis.shown))
    if work(diagnosis.shown):
        console.print(beside("Work", _plain(work(diagnosis.shown), "dim")))


def print_short_findings(
    findings: tuple[Finding, ...], shown_rank: int, console: Console, *, of_steps: bool = True
) -> None:
    """Print the first findings, in two lines each.

    Args:
        findings: The findings.
        shown_rank: The rank that the report shows.
        console: The console.
        of_steps: Whether fixes can save time of a step.
    """
    if not findings:
        console.print(_no_findings())
        return
    groups = findings_alike(findings, shown_rank)
    console.print(Text("Findings", "bold"))
    for number, group in enumerate(groups[:_MOST_SHORT_FINDINGS], start=1):
        finding = group[0]
        head = Text("  ").append_text(_head(number, finding))
        whose = f"rank {finding.rank}'s " if finding.rank != shown_rank else ""
        advice, _, _ = finding.advice.partition(". ")
        placed = f"  ({finding.placed})" if finding.placed else ""
        second = Text.assemble(
            "     ",
            (short_saving(finding, whose), "" if finding.saving_ns is None else "green")
            if of_steps
            else "",
            (printable(placed), "dim"),
            f"{'  ' if of_steps else ''}{printable(advice.removesuffix('.'))}",
        )
        console.print(cut_line(head, console))
        console.print(cut_line(second, console))
    rest = len(groups) - _MOST_SHORT_FINDINGS
    if rest > 0:
        names = ", ".join(group[0].id for group in groups[_MOST_SHORT_FINDINGS:])
        console.print(cut_line(Text(f"  and {rest} more: {names}", "dim"), console))
    console.print()


def cut_line(text: Text, console: Console) -> Text:
    """A line cut at the width; in a file or pipe it is whole."""
    if console.width < UNLIMITED:
        text.truncate(console.width, overflow="ellipsis")
    text.no_wrap = True
    return text


def print_diagnosis(diagnosis: Diagnosis, console: Console) -> None:
    """Print the whole report."""
    _print_head(diagnosis, console)
    if diagnosis.shown.partition is not None:
        console.print()
        console.print(_partition(diagnosis.shown, console.width))
    if compute_rows(diagnosis.shown):
        console.print()
        console.print(_compute(diagnosis.shown))
    if len(diagnosis.ranks) > 1:
        console.print()
        console.print(_ranks(diagnosis))
    _print_hardware(diagnosis.ranks, console)
    console.print()
    console.print(_findings(diagnosis))
    _print_ladder(diagnosis, console)
    _print_trials(diagnosis, console)
    told = notes(diagnosis)
    if told:
        console.print()
        console.print(Text("Notes", "bold"))
        for note in told[:_MOST_NOTES]:
            console.print(Padding(_plain(note, "dim"), (0, 0, 0, 2)))
        if len(told) > _MOST_NOTES:
            rest = len(told) - _MOST_NOTES
            console.print(Padding(Text(f"and {rest} more: see --format json", "dim"), (0, 0, 0, 2)))


def _print_ladder(diagnosis: Diagnosis, console: Console) -> None:
    """The step after each fix, and the floor."""
    rows = ladder_rows(diagnosis)
    if not rows:
        return
    if together(diagnosis) or not diagnosis.findings:
        console.print()
    console.print(Text("How far it can go", "bold"))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("with this fixed, too")
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column("of today's", justify="right", no_wrap=True)
    table.add_column("then it is limited by")
    for row in rows:
        table.add_row(*map(_plain, row))
    console.print(Padding(table, (0, 0, 0, 2), expand=False))
    for note in ladder_notes(diagnosis):
        console.print(Padding(_plain(note, "dim"), (0, 0, 0, 2)))
    console.print()


def _print_trials(diagnosis: Diagnosis, console: Console) -> None:
    """What trials of fixes brought, if the script was tried."""
    trials = diagnosis.run.trials
    if trials is None:
        return
    console.print(Text.assemble(("Tried  ", "bold"), printable(trials.verdict)))
    print_trials(trials, console)
    console.print()


def _plain(text: str, style: str = "") -> Text:
    """Text that may come from a file: no markup, no control characters."""
    return Text(printable(text), style)


def beside(label: str, content: RenderableType) -> Table:
    """A label beside its content, so that wrapped lines stay aligned."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold", min_width=7)
    table.add_column()
    table.add_row(label, content)
    return table


def _step(diagnosis: Diagnosis, rank: RankSummary) -> RenderableType:
    line = Text(step_time(rank), "bold")
    line.append(f"  {step_basis(diagnosis, rank)}", "dim")
    summary = rank.steps
    if summary is None:
        return beside("Step", line)
    speed = [f"{significant(1e9 / summary.mean_ns)} steps/s"] if summary.mean_ns else []
    if summary.tokens_per_second is not None:
        speed.append(f"{units.count(round(summary.tokens_per_second))} tokens/s")
    if summary.samples_per_second is not None:
        speed.append(f"{units.count(round(summary.samples_per_second))} samples/s")
    speed.append(f"longest {units.duration(summary.worst_ns)}")
    lines = [line, Text("  ·  ".join(speed), "dim")]
    if summary.other_kinds:
        lines.append(_plain(besides(summary), "dim"))
    return beside("Step", Group(*lines))


def _partition(rank: RankSummary, width: int) -> RenderableType:
    partition = rank.partition
    if partition is None:
        return Text()
    bars = _bars(partition, width - 2)
    inside: list[RenderableType] = [_plain(partition_basis(rank), "dim"), bars]
    if communication(rank):
        inside.append(Text(communication(rank), "dim"))
    if partition_scope(rank):
        inside.append(Text(partition_scope(rank), "dim"))
    return Group(
        Text("Where the step goes", "bold"), Padding(Group(*inside), (0, 0, 0, 2), expand=False)
    )


def _compute(rank: RankSummary) -> RenderableType:
    title, _, amount = compute_title(rank).partition("   ")
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column()
    for label, text in compute_rows(rank):
        table.add_row(label, _plain(text))
    head = Text.assemble((title, "bold"), (f"   {amount}", "dim"))
    return Group(head, Padding(table, (0, 0, 0, 2)))


def _indented(content: RenderableType) -> Padding:
    return Padding(content, (0, 0, 0, 2), expand=False)


def _bars(partition: Partition, width: int, least: float = 0.0) -> Table:
    """The parts as bars. Parts below `least` of the step are shown together, so that all add up.

    In a narrow terminal bars give way first, then names; numbers never do.
    """
    parts = [part for part in partition.parts if part.total_ns]
    small = [part for part in parts if partition.share(part) < least]
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
    numbers = sum(max(map(len, texts), default=0) + _GAP for texts in (times, shares))
    longest = max(map(len, names), default=0)
    room = min(width - numbers - longest - _GAP, _BAR_WIDTH)
    room = room if room >= _SHORTEST_BAR else 0
    names = shortened(names, max(width - numbers, _SHORTEST_NAME))
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, _GAP, 0, 0))
    table.add_column("part", no_wrap=True)
    if room:
        table.add_column("bar", no_wrap=True)
    table.add_column("per step", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    for name, (_, share, _), *numbers_of_row in zip(names, rows, times, shares, strict=True):
        bar = "█" * round(share * room) or "▏"
        bars = [Text(bar.ljust(room), "blue")] if room else []
        table.add_row(Text(name), *bars, *numbers_of_row)
    return table


def _ranks(diagnosis: Diagnosis) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in rank_columns(diagnosis):
        table.add_column(name, justify="right")
    for row in rank_rows(diagnosis):
        table.add_row(*row)
    title = Text("Ranks", "bold")
    if len(diagnosis.ranks) > MOST_RANKS:
        title.append(f"   the slowest {MOST_RANKS} of {len(diagnosis.ranks)}", "dim")
    inside: list[RenderableType] = [table]
    told = between_ranks(diagnosis)
    if told:
        inside = [_plain(told), Text(), table]
    odd = odd_ranks(diagnosis)
    if odd:
        inside += [Text(), *(_plain(line) for line in odd)]
    return Group(title, Padding(Group(*inside), (0, 0, 0, 2), expand=False))


def _print_hardware(ranks: tuple[RankSummary, ...], console: Console) -> None:
    found = [(f"rank {rank.rank}", rank.metrics) for rank in ranks if rank.metrics is not None]
    if not found:
        return
    labelled = found if len(ranks) > 1 else [("", found[0][1])]
    console.print()
    title = Text("Hardware", "bold")
    if len(labelled) > MOST_RANKS:
        title.append(f"   the first {MOST_RANKS} of {len(labelled)} ranks", "dim")
    console.print(title)
    print_metrics(labelled[:MOST_RANKS], console, with_notes=False)


def _findings(diagnosis: Diagnosis) -> RenderableType:
    found = findings_block(
        diagnosis.findings, diagnosis.shown.rank, has_ranks=len(diagnosis.ranks) > 1
    )
    told = together(diagnosis)
    if not told:
        return found
    return Group(found, Padding(_plain(told), (0, 0, 0, 2)))


def _no_findings() -> Text:
    return Text.assemble(("Findings ", "bold"), ("none above the thresholds", "dim"))


def findings_block(
    findings: tuple[Finding, ...], shown_rank: int, *, has_ranks: bool
) -> RenderableType:
    """All findings in full."""
    if not findings:
        return _no_findings()
    items: list[RenderableType] = [Text("Findings", "bold")]
    for number, group in enumerate(findings_alike(findings, shown_rank), start=1):
        items.append(_finding(number, group[0], ranks_with(group) if has_ranks else ""))
    return Group(*items)


def _head(number: int, finding: Finding) -> Text:
    return Text.assemble(
        f"{number}. ",
        (finding.severity.value.upper(), _STYLES[finding.severity]),
        "  ",
        (finding.id, "bold"),
        f"  {printable(finding.title)}",
    )


def _finding(number: int, finding: Finding, where: str) -> RenderableType:
    title = _head(number, finding)
    if where:
        title.append(f"  ({where})", "dim")
    # What does not fit into the first line goes on beside the number, not below it.
    place = len(f"{number}. ")
    head = Table.grid(padding=(0, 1, 0, 0))
    head.add_row(title[: place - 1], title[place:])
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column()
    promised, sign, change = saving(finding).partition(": ")
    style = "" if finding.saving_ns is None else "bold green"
    table.add_row("saving", Text.assemble((promised, style), sign, change))
    if finding.assumption:
        table.add_row("if", _plain(finding.assumption))
    if finding.placed:
        table.add_row("placed", _plain(finding.placed))
    table.add_row("seen", _evidence(finding))
    if finding.steps:
        shown = ", ".join(map(str, finding.steps[:8])) + (" …" if len(finding.steps) > 8 else "")
        table.add_row("steps", Text(shown))
    table.add_row("do", _plain(finding.advice))
    table.add_row("more", Text(finding.explained_by, "dim"))
    return Padding(Group(head, Padding(table, (0, 0, 0, 3))), (0, 0, 1, 2))


def _evidence(finding: Finding) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column()  # on a narrow terminal, labels wrap before values vanish
    table.add_column(overflow="fold")  # of a long name, no part is lost
    for item in finding.evidence:
        table.add_row(_plain(item.label), _plain(units.value(item.value, item.unit)))
    return table
