"""What memory snapshots alone say: a verdict, findings and advice, as for a trace.

A snapshot has no step whose time a fix could shorten, so its findings promise bytes, not time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from stepscope.advice.evidence.subject import Subject
from stepscope.advice.finding import Finding, Severity
from stepscope.advice.rules import MEMORY_RULES, RULES
from stepscope.advice.rules.memory.dominating import MADE_AT, SIZE, SIZE_OF_ALL
from stepscope.advice.thresholds import Thresholds
from stepscope.analysis.memory.opening import open_memory
from stepscope.memory.program.lines import NO_STACK
from stepscope.memory.questions.composition import by_line
from stepscope.memory.questions.table import MemoryAnswer, answer, question
from stepscope.memory.view import MemoryView, held_at
from stepscope.run.figures import binary_size, percent, shortened_list
from stepscope.terminal.working import working

_RANK = re.compile(r"rank[-_]?(\d{1,6})", re.IGNORECASE)
NOTHING = "nothing stands out"
_LARGE = "one-tensor-dominates"


@dataclass(frozen=True)
class SnapshotSummary:
    """One snapshot, judged.

    Attributes:
        rank: The rank that its name or place says, else its place among the snapshots.
        findings: The most severe first.
    """

    rank: int
    path: str
    verdict: str
    findings: tuple[Finding, ...]
    overview: MemoryAnswer


@dataclass(frozen=True)
class MemoryReport:
    """Snapshots, judged: one, or one of each rank.

    Attributes:
        shown: The snapshot that the verdict is about: the one with the severest finding, and of
            these the fullest.
        findings: Of all snapshots, the most severe first.
    """

    location: str
    shown: SnapshotSummary
    snapshots: tuple[SnapshotSummary, ...]
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> str:
        """What the snapshots say, in one sentence."""
        if len(self.snapshots) == 1:
            return self.shown.verdict
        return f"rank {self.shown.rank}: {self.shown.verdict}"


def report_snapshots(
    location: str, paths: Sequence[str], limits: Thresholds, *, is_drawn: bool = False
) -> MemoryReport:
    """Judges snapshots.

    Args:
        paths: The snapshots, at least one; of several, each is a rank.
        is_drawn: Whether to bring memory over time.
    """
    ranked = _ranked(paths)
    summaries = tuple(_summary(rank, path, limits, is_drawn) for rank, path in ranked)
    findings = [one for summary in summaries for one in summary.findings]
    findings.sort(key=lambda one: one.severity.place)
    shown = min(
        summaries,
        key=lambda one: (
            one.findings[0].severity.place if one.findings else len(Severity),
            -one.overview.result.peak_allocated_bytes,
        ),
    )
    return MemoryReport(location, shown, summaries, tuple(findings))


def _ranked(paths: Sequence[str]) -> list[tuple[int, str]]:
    """Each file with its rank: as the name, or that of a directory above it, says; else in order.

    Of several files of one rank, the last counts.
    """
    found = [_RANK.findall(path) for path in paths]
    if not all(found):
        return list(enumerate(paths))
    return sorted({int(one[-1]): path for one, path in zip(found, paths, strict=True)}.items())


def _summary(rank: int, path: str, limits: Thresholds, is_drawn: bool) -> SnapshotSummary:
    with working(f"Reading {path}"):
        view = open_memory(path).view
    subject = Subject(rank, thresholds=limits, memory=view)
    found: list[Finding] = []
    for rule in MEMORY_RULES:
        with working(f"Checking {rule}"):
            found += RULES[rule](subject)
    found.sort(key=lambda one: one.severity.place)  # of one severity in the order of the rules
    overview = answer(view, question("overview"), is_drawn=is_drawn)
    return SnapshotSummary(rank, path, _verdict(view, found), tuple(found), overview)


def _verdict(view: MemoryView, findings: Sequence[Finding]) -> str:
    """What the severest finding says; without one, what the peak consists of."""
    weighty = next((one for one in findings if one.severity.is_weighty), None)
    if weighty is not None:
        why = next((one.value for one in weighty.evidence if one.label == "why"), "")
        return f"{weighty.id}: {why or weighty.title}"
    device = view.fullest_device
    if not view.devices:
        return "nothing was recorded: the snapshot has no segment and no event"
    moment = view.peak(device)
    held = held_at(view.allocations, device, moment.event).rename({"size_bytes": "allocated_bytes"})
    total = int(held["allocated_bytes"].sum())
    if not total:
        return f"{NOTHING}: no memory was held at any time"
    kind, most = (
        held.group_by(pl.col("category").cast(pl.String))
        .agg(pl.col("allocated_bytes").sum())
        .sort("allocated_bytes", "category", descending=[True, False])
        .row(0)
    )
    line = by_line(held).row(0, named=True)
    of = f"{percent(most / total)} of it {kind.replace('_', ' ')} memory"
    if kind == "unknown":
        part = "it" if most == total else f"{percent(most / total)} of it"
        of = f"and nothing shows what {part} was for (memory_census=True records that)"
    when = "the peak" if view.has_history(device) else "what was held at the dump (not a peak)"
    share = percent(line["allocated_share"])
    place = f"the line with most is {line['line']} ({share})"
    if line["line"] == NO_STACK:
        place = f"of {share} no stack was recorded"
    what = f"{when} is {binary_size(total)}, {of}"
    large = next((one for one in findings if one.id == _LARGE), None)
    if large is not None and _bytes_of(large) > line["allocated_bytes"]:
        lines = [str(one.value) for one in large.evidence if one.label == MADE_AT]
        known = [one for one in lines if one != NO_STACK]
        return f"{what}; {large.title}{f', made at {shortened_list(known, 2)}' if known else ''}"
    return f"{NOTHING}: {what}; {place}"


def _bytes_of(large: Finding) -> int:
    """How much memory the tensors have that a finding is about."""
    return max(int(one.value) for one in large.evidence if one.label in (SIZE, SIZE_OF_ALL))
