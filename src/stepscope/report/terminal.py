"""The diagnosis on a terminal: the verdict, where the step goes, and what to do about it."""

from __future__ import annotations

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from stepscope.advice.diagnosis import Diagnosis, RankDiagnosis
from stepscope.advice.finding import Finding, Severity
from stepscope.advice.rules import slow_phase
from stepscope.analysis.partition import Partition
from stepscope.analysis.step_record import StepSummary
from stepscope.report import units

_STYLES = {
    Severity.HIGH: "bold red",
    Severity.MEDIUM: "bold yellow",
    Severity.LOW: "bold cyan",
    Severity.INFO: "bold",
}
_BAR_WIDTH = 24
_MOST_RANKS = 8
_MOST_NOTES = 5


def print_diagnosis(diagnosis: Diagnosis, console: Console) -> None:
    """Print the whole report."""
    console.print(Text(diagnosis.run.location, "dim"), soft_wrap=True)
    console.print(_header(diagnosis))
    console.print()
    console.print(_beside("Verdict", Text(diagnosis.verdict, "bold")))
    console.print()
    first = next(rank for rank in diagnosis.ranks if rank.partition is not None)
    console.print(_step(first))
    if first.partition is not None:
        console.print()
        console.print(_partition(first))
    if len(diagnosis.ranks) > 1:
        console.print()
        console.print(_ranks(diagnosis))
    console.print()
    console.print(_findings(diagnosis))
    notes = _notes(diagnosis)
    if notes:
        console.print()
        console.print(Text("Notes", "bold"))
        for note in notes[:_MOST_NOTES]:
            console.print(Padding(Text(note, "dim"), (0, 0, 0, 2)))
        if len(notes) > _MOST_NOTES:
            rest = len(notes) - _MOST_NOTES
            console.print(Padding(Text(f"and {rest} more: see --format json", "dim"), (0, 0, 0, 2)))


def _beside(label: str, content: RenderableType) -> Table:
    """A label with its content beside it, so that wrapped lines stay in their column."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold", min_width=7)
    table.add_column()
    table.add_row(label, content)
    return table


def _header(diagnosis: Diagnosis) -> Text:
    count = len(diagnosis.ranks)
    job = diagnosis.run.job
    world = job.world_size if job else count
    parts = [f"{count} rank" + ("s" if count != 1 else "")]
    if world > count:
        parts[-1] += f" of {world}"
    if job is not None:
        if "torch" in job.versions:
            parts.append(f"torch {job.versions['torch']}")
        parts.append(job.devices[0] if job.devices else f"{job.cpu_count} CPUs, no GPU in use")
    return Text("  ·  ".join(parts), "dim")


def _step(rank: RankDiagnosis) -> RenderableType:
    line = Text(units.duration(rank.step_ns or 0), "bold")
    summary = rank.steps
    if summary is None:
        which = "median" if rank.device is None else "mean"
        line.append(f"  {which} of the steps in the trace; recording slows them down", "dim")
        return _beside("Step", line)
    count = len(summary.steps)
    line.append(f"  median of {count} steady step{'s' if count != 1 else ''}", "dim")
    left_out = _left_out(summary)
    if left_out:
        line.append(f" ({left_out} left out)", "dim")
    speed = [f"{1e9 / summary.mean_ns:.3g} steps/s"] if summary.mean_ns else []
    if summary.tokens_per_second is not None:
        speed.append(f"{units.count(round(summary.tokens_per_second))} tokens/s")
    if summary.samples_per_second is not None:
        speed.append(f"{units.count(round(summary.samples_per_second))} samples/s")
    speed.append(f"longest {units.duration(summary.worst_ns)}")
    return _beside("Step", Group(line, Text("  ·  ".join(speed), "dim")))


def _left_out(summary: StepSummary) -> str:
    excluded = summary.excluded
    words = [
        (excluded.first, "slow at the start"),
        (excluded.recorded, "recorded in detail"),
        (excluded.other_kind, "of another kind"),
        (excluded.partial, "partial"),
    ]
    return ", ".join(f"{count} {word}" for count, word in words if count)


def _partition(rank: RankDiagnosis) -> RenderableType:
    partition = rank.partition
    if partition is None:
        return Text()
    steps = f"{partition.steps} step{'s' if partition.steps != 1 else ''}"
    basis = f"{partition.basis}, {steps}"
    if rank.host is not None and rank.steps is not None and (rank.steps.recording_factor or 0) > 1:
        basis += f"; recording made them {rank.steps.recording_factor:.2f}× as long"
    return Group(
        Text("Where the step goes", "bold"),
        Padding(Group(Text(basis, "dim"), _bars(partition)), (0, 0, 0, 2)),
    )


def _bars(partition: Partition) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("part", no_wrap=True)
    table.add_column("bar", no_wrap=True)
    table.add_column("per step", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    for part in partition.parts:
        if not part.total_ns:
            continue
        share = partition.share(part)
        bar = "█" * round(share * _BAR_WIDTH) or "▏"
        table.add_row(
            part.name,
            Text(bar.ljust(_BAR_WIDTH), "blue"),
            units.duration(partition.per_step_ns(part)),
            units.share(share),
        )
    return table


def _ranks(diagnosis: Diagnosis) -> RenderableType:
    ranks, skew = diagnosis.ranks, diagnosis.skew
    waits = {wait.rank: wait.wait_ns for wait in skew.ranks} if skew is not None else {}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("rank", "steps", "step", "input wait", "longest", *(["others"] if waits else [])):
        table.add_column("waits for others" if name == "others" else name, justify="right")
    # Ranks that meet in every step take equally long: the last to come is the one to look at.
    slowest = sorted(ranks, key=lambda rank: (waits.get(rank.rank, 0), -(rank.step_ns or 0)))
    for rank in slowest[:_MOST_RANKS]:
        summary = rank.steps
        row = [
            str(rank.rank),
            str(len(summary.steps)) if summary else "–",
            units.duration(rank.step_ns) if rank.step_ns is not None else "–",
            units.duration(summary.median_wait_ns) if summary else "–",
            units.duration(summary.worst_ns) if summary else "–",
        ]
        if waits:
            row.append(units.duration(waits[rank.rank]) if rank.rank in waits else "–")
        table.add_row(*row)
    title = Text("Ranks", "bold")
    if len(ranks) > _MOST_RANKS:
        which = "latest" if waits else "slowest"
        title.append(f"   the {which} {_MOST_RANKS} of {len(ranks)}", "dim")
    if skew is None:
        return Group(title, table)
    device = "on the device, " if skew.is_device else ""
    error = f", ± {units.duration(skew.error_ns)}" if skew.error_ns else ""
    basis = f"waiting: {device}from {skew.basis}, {skew.steps} steps that all ranks have{error}"
    return Group(title, table, Text(basis, "dim"))


def _findings(diagnosis: Diagnosis) -> RenderableType:
    if not diagnosis.findings:
        return Text.assemble(("Findings ", "bold"), ("none above the thresholds", "dim"))
    several = len(diagnosis.ranks) > 1
    items: list[RenderableType] = [Text("Findings", "bold")]
    for number, group in enumerate(_alike(diagnosis.findings), start=1):
        items.append(_finding(number, group[0], _where(group) if several else ""))
    return Group(*items)


def _alike(findings: tuple[Finding, ...]) -> list[list[Finding]]:
    """What one rule found on several ranks, the greatest saving first."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        # One rank may have several slow phases, each named in the title.
        which = finding.title if finding.id == slow_phase.ID else ""
        groups.setdefault((finding.id, which), []).append(finding)
    return list(groups.values())


def _where(group: list[Finding]) -> str:
    others = sorted({finding.rank for finding in group[1:]} - {group[0].rank})
    words = f"rank {group[0].rank}"
    if others:
        shown = ", ".join(map(str, others[:_MOST_RANKS]))
        more = ", …" if len(others) > _MOST_RANKS else ""
        words += f"; less on {len(others)} other{'s' if len(others) > 1 else ''}: {shown}{more}"
    return words


def _finding(number: int, finding: Finding, where: str) -> RenderableType:
    head = Text.assemble(
        f"{number}. ",
        (finding.severity.value.upper(), _STYLES[finding.severity]),
        "  ",
        (finding.id, "bold"),
        f"  {finding.title}",
    )
    if where:
        head.append(f"  ({where})", "dim")
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column()
    if finding.saving_ns is not None and finding.predicted_step_ns is not None:
        now_ns = finding.saving_ns + finding.predicted_step_ns
        table.add_row(
            "saves",
            Text.assemble(
                (f"{units.duration(finding.saving_ns)} per step", "bold green"),
                f": {units.duration(now_ns)} → {units.duration(finding.predicted_step_ns)}",
            ),
        )
        table.add_row("if", Text(finding.assumption))
    else:
        table.add_row("saves", Text(f"nothing per step can be promised: {finding.saving_reason}"))
    table.add_row("seen", _evidence(finding))
    if finding.steps:
        shown = ", ".join(map(str, finding.steps[:8])) + (" …" if len(finding.steps) > 8 else "")
        table.add_row("steps", Text(shown))
    table.add_row("do", Text(finding.advice))
    table.add_row("more", Text(finding.page, "dim"))
    return Padding(Group(head, Padding(table, (0, 0, 0, 3))), (0, 0, 1, 2))


def _evidence(finding: Finding) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for item in finding.evidence:
        table.add_row(item.label, units.value(item.value, item.unit))
    return table


def _notes(diagnosis: Diagnosis) -> list[str]:
    notes = list(diagnosis.run.problems)
    for rank_run, rank in zip(diagnosis.run.ranks, diagnosis.ranks, strict=True):
        prefix = f"rank {rank.rank}: " if len(diagnosis.ranks) > 1 else ""
        manifest = rank_run.manifest
        if manifest is not None:
            if manifest.state != "finished" or "no window" in manifest.ended:
                notes.append(f"{prefix}{manifest.state}: {manifest.ended}")
            for window in manifest.windows:
                if window.state != "complete":
                    notes.append(
                        f"{prefix}window {window.index} is {window.state}: {window.reason}"
                    )
                notes += [
                    f"{prefix}window {window.index}: {artifact.problem}"
                    for artifact in window.artifacts
                    if artifact.problem
                ]
            notes += [
                f"{prefix}capture: {problem.where}: {problem.message}"
                for problem in manifest.problems
            ]
        notes += [prefix + note for note in rank.notes]
    return notes
