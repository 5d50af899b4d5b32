"""The diagnosis as a document: on one screen, or in full."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stepscope.report import units
from stepscope.report.diagnosis.sentences import (
    MOST_RANKS,
    besides,
    between_ranks,
    communication,
    compute_rows,
    compute_title,
    header,
    ladder_notes,
    next_limit,
    notes,
    odd_ranks,
    partition_basis,
    partition_scope,
    rank_rows,
    speeds,
    step_basis,
    together,
    work,
)
from stepscope.report.diagnosis.tables import diagnosis_tables
from stepscope.report.document import (
    Bars,
    Block,
    Column,
    Facts,
    Findings,
    Gap,
    Heading,
    Items,
    Labelled,
    Line,
    Look,
    Note,
    Span,
    Table,
    Title,
)
from stepscope.report.findings import picked, shown_findings
from stepscope.report.metrics import metrics_blocks
from stepscope.report.trial import trials_table

if TYPE_CHECKING:
    import polars as pl

    from stepscope.advice.diagnosis import Diagnosis
    from stepscope.advice.rank.summary import RankSummary
    from stepscope.report.outputs import Layout

_MOST_NOTES = 5
_MOST_SHORT_NOTES = 2
_MOST_SHORT_ODD = 3
_SMALL_PART = 0.01
_INDENT = 2


def document(diagnosis: Diagnosis, layout: Layout) -> Iterator[Block]:
    """The diagnosis: on one screen, or in full."""
    return _full(diagnosis) if layout.is_full else _summary(diagnosis)


def _summary(diagnosis: Diagnosis) -> Iterator[Block]:
    """What fits a screen: verdict, step, partition, and the findings in two lines each."""
    shown = diagnosis.shown
    yield from _head(diagnosis)
    if shown.shown_partition is not None:
        yield Gap()
        yield Heading("Where the step goes", partition_basis(shown))
        yield Bars(shown.shown_partition, _SMALL_PART)
        if communication(shown):
            yield Line(communication(shown), "dim", indent=_INDENT)
    lines = [line for line in (between_ranks(diagnosis), *odd_ranks(diagnosis)) if line]
    if len(diagnosis.ranks) > 1 and lines:
        yield Gap()
        yield Labelled("Ranks", tuple(map(Line, lines[:_MOST_SHORT_ODD])))
    yield Gap()
    yield findings_of(diagnosis, is_short=True)
    yield from _trials(diagnosis)
    problems = notes(diagnosis)
    for note in problems[:_MOST_SHORT_NOTES]:
        yield Note(note)
    more = ["evidence", "assumptions", "advice in full"]
    if len(diagnosis.ranks) > 1:
        more.append("each rank")
    if len(problems) > _MOST_SHORT_NOTES:
        more.append(units.plural(len(problems) - _MOST_SHORT_NOTES, "more note"))
    yield Line(f"--full shows {', '.join(more)}", "dim")


def _full(diagnosis: Diagnosis) -> Iterator[Block]:
    shown = diagnosis.shown
    yield from _head(diagnosis)
    if shown.shown_partition is not None:
        yield Gap()
        yield Heading("Where the step goes")
        yield Line(partition_basis(shown), "dim", indent=_INDENT)
        yield Bars(shown.shown_partition)
        for line in filter(None, (communication(shown), partition_scope(shown))):
            yield Line(line, "dim", indent=_INDENT)
    if made_of := compute_rows(shown):
        yield Gap()
        yield Heading(*compute_title(shown))
        yield Facts(tuple(made_of))
    if len(diagnosis.ranks) > 1:
        yield Gap()
        yield from _ranks(diagnosis)
    count = sum(rank.metrics is not None for rank in diagnosis.ranks)
    if count:
        aside = f"the first {MOST_RANKS} of {count} ranks" if count > MOST_RANKS else ""
        yield Gap()
        yield Heading("Hardware", aside)
        yield from hardware(diagnosis.ranks)
    yield Gap()
    yield findings_of(diagnosis)
    if together(diagnosis):
        yield Line(together(diagnosis), indent=_INDENT)
    yield from _ladder(diagnosis)
    yield from _trials(diagnosis)
    if lines := notes(diagnosis):
        yield Gap()
        yield Heading("Notes")
        yield Items(tuple(lines), _INDENT, "dim", most=_MOST_NOTES)


def _head(diagnosis: Diagnosis) -> Iterator[Block]:
    yield Title(diagnosis.run.location)
    yield Line(header(diagnosis), "dim")
    yield Gap()
    yield Labelled("Verdict", (Line(diagnosis.verdict, "bold"),))
    if next_limit(diagnosis):
        yield Labelled("Then", (Line(next_limit(diagnosis)),))
    yield Gap()
    yield Labelled("Step", tuple(_step(diagnosis)))
    if work(diagnosis.shown):
        yield Labelled("Work", (Line(work(diagnosis.shown), "dim"),))


def _step(diagnosis: Diagnosis) -> Iterator[Line]:
    shown = diagnosis.shown
    basis = Span(f"  {step_basis(diagnosis, shown)}", "dim")
    taken = "unknown" if shown.step_ns is None else units.duration(shown.step_ns)
    yield Line((Span(taken, "bold"), basis))
    summary = shown.steps
    if summary is None:
        return
    *rates, (_, longest) = speeds(summary)
    lines = [*(f"{text} {unit}" for unit, text in rates), f"longest {longest}"]
    yield Line("  ·  ".join(lines), "dim")
    if summary.other_kinds:
        yield Line(besides(summary), "dim")


def _ranks(diagnosis: Diagnosis) -> Iterator[Block]:
    count = len(diagnosis.ranks)
    yield Heading("Ranks", f"the slowest {MOST_RANKS} of {count}" if count > MOST_RANKS else "")
    if lines := between_ranks(diagnosis):
        yield Line(lines, indent=_INDENT)
        yield Gap()
    headings, rows = rank_rows(diagnosis)
    columns = tuple(Column(name, is_amount=True) for name in headings)
    yield Table(columns, tuple(rows), Look.RULED, gap=3, indent=_INDENT)
    if odd := odd_ranks(diagnosis):
        yield Gap()
        yield Items(tuple(odd), _INDENT)


def hardware(ranks: tuple[RankSummary, ...]) -> Iterator[Block]:
    """What was sampled beside the first ranks."""
    found = [(f"rank {rank.rank}", rank.metrics) for rank in ranks if rank.metrics is not None]
    if found:
        labelled = found if len(ranks) > 1 else [("", found[0][1])]
        yield from metrics_blocks(labelled[:MOST_RANKS], with_notes=False)


def findings_of(diagnosis: Diagnosis, *, is_short: bool = False) -> Findings:
    """The findings, those of one rule on several ranks together."""
    rank, has_ranks = diagnosis.shown.rank, len(diagnosis.ranks) > 1
    return Findings(shown_findings(diagnosis.findings, rank, has_ranks=has_ranks), rank, is_short)


def _ladder(diagnosis: Diagnosis) -> Iterator[Block]:
    rungs = diagnosis.shown.ladder.rungs
    if not rungs:
        return
    rows = (
        (
            rung.name,
            units.duration(rung.step_ns),
            units.percent(rung.step_ns / max(1, rungs[0].step_ns)),
            rung.limit_text,
        )
        for rung in rungs
    )
    if together(diagnosis) or not diagnosis.findings:
        yield Gap()
    yield Heading("How far it can go")
    columns = (
        Column("with this fixed, too"),
        Column("step", is_amount=True, wraps=False),
        Column("of today's", is_amount=True, wraps=False),
        Column("then it is limited by"),
    )
    yield Table(columns, tuple(rows), Look.RULED, gap=3, indent=_INDENT)
    yield Items(tuple(ladder_notes(diagnosis)), _INDENT, "dim")
    yield Gap()


def _trials(diagnosis: Diagnosis) -> Iterator[Block]:
    trials = diagnosis.run.trials
    if trials is None:
        return
    yield Labelled("Tried", (Line(trials.verdict),))
    yield from trials_table(trials)
    yield Gap()


def frames(diagnosis: Diagnosis, layout: Layout) -> Iterator[pl.DataFrame]:
    """The chosen table, by default the findings."""
    yield picked(diagnosis_tables(diagnosis), layout)
