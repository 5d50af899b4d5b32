"""The diagnosis as a page in one file, to look at, to print, and to send to a colleague."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from stepscope.advice.diagnosis import Diagnosis
from stepscope.advice.drawn_step import TypicalStep
from stepscope.advice.finding import Finding
from stepscope.advice.rank_steps import rank_steps
from stepscope.advice.rank_summary import RankSummary
from stepscope.advice.window_details import DetailedAnswer
from stepscope.analysis.questions import question
from stepscope.report import units
from stepscope.report.answer.cells import headings
from stepscope.report.diagnosis.tables import ranks_table
from stepscope.report.diagnosis.words import (
    besides,
    between_ranks,
    compute_rows,
    compute_title,
    findings_alike,
    header,
    notes,
    odd_ranks,
    partition_basis,
    partition_scope,
    ranks_with,
    saving,
    step_basis,
    together,
)
from stepscope.report.outputs import Layout, Sink
from stepscope.report.page import blocks
from stepscope.report.page.document import page
from stepscope.report.page.step_groups import StepGroups
from stepscope.report.scope import describe_scope
from stepscope.report.trial.words import COLUMNS
from stepscope.report.trial.words import rows as trial_rows

_MOST_NOTES = 200
_MOST_STEPS = 12
_COMMON = ("trace", "profile", "report", "chrome_trace", "traces", "output")
"""Names of files that do not say of which training they are."""
_FORMAL = ("schemaVersion", "baseTimeNanoseconds", "displayTimeUnit")
"""Keys of a trace's header that say nothing of the training."""
_STEP_NAME = re.compile(r"ProfilerStep#(\d+)")
_TITLES = {
    "kernels": "Kernels",
    "operators": "Operators",
    "modules": "Modules",
    "communication": "Communication",
    "memory": "Memory",
}
_RANK_LABELS = {
    "rank": "rank",
    "step_ns": "step",
    "steady_steps": "steps",
    "input_wait_ns": "input wait",
    "longest_ns": "longest",
    "wait_ns": "waiting costs",
    "own_ns": "without it",
    "last": "arrives last",
    "collectives": "collectives",
    "record_wait_ns": "wait for others",
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
        _step(diagnosis),
        _compute(diagnosis.shown),
        _steps(diagnosis),
        _typical_step(diagnosis),
        _findings(diagnosis),
        _tried(diagnosis, rows),
        *details,
        _ranks(diagnosis, rows),
        _metrics(diagnosis, rows),
        _environment(diagnosis),
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
    if finding is None:
        return blocks.section("verdict", "Verdict", blocks.text(_sentence(words), "verdict"))
    return blocks.section(
        "verdict",
        "Verdict",
        blocks.text(_sentence(words.removeprefix(f"{finding.id}: ")), "verdict"),
        blocks.text(finding.advice, "lead"),
    )


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


def _step(diagnosis: Diagnosis) -> dict[str, Any]:
    shown, record = diagnosis.shown, diagnosis.shown.steps
    whole = "whole file" if shown.is_whole_file else "step"
    large = [] if shown.step_ns is None else [(whole, units.duration(shown.step_ns))]
    if record is not None:
        if record.mean_ns:
            large.append(("steps/s", f"{1e9 / record.mean_ns:.3g}"))
        if record.tokens_per_second is not None:
            large.append(("tokens/s", units.count(round(record.tokens_per_second))))
        if record.samples_per_second is not None:
            large.append(("samples/s", units.count(round(record.samples_per_second))))
        large.append(("longest step", units.duration(record.worst_ns)))
    partition = shown.partition
    return blocks.section(
        "step",
        "Where the step goes",
        blocks.numbers(large),
        blocks.text(_sentence(step_basis(diagnosis, shown))),
        None
        if partition is None
        else blocks.bar(
            [(part.name, part.total_ns) for part in partition.parts],
            partition.total_ns,
            partition.steps,
        ),
        blocks.text(f"{_sentence(partition_basis(shown))}.", "note") if partition else None,
        blocks.text(f"{partition_scope(shown)}.", "note") if partition_scope(shown) else None,
        blocks.text(_sentence(besides(record)), "note") if record and record.other_kinds else None,
    )


def _compute(rank: RankSummary) -> dict[str, Any]:
    title, _, amount = compute_title(rank).partition("   ")
    made_of = blocks.facts(compute_rows(rank))
    note = blocks.text(f"{_sentence(amount)}.", "note") if made_of else None
    return blocks.section("compute", title, made_of, note)


def _steps(diagnosis: Diagnosis) -> dict[str, Any]:
    """Each step's duration: of the step record, else of the window."""
    shown = diagnosis.shown
    groups = _record_groups(shown) or _window_groups(shown)
    if groups is None or len(groups.first) < 2:
        return blocks.section("steps", "Steps")
    return blocks.section("steps", "Steps", blocks.history([groups]))


def _typical_step(diagnosis: Diagnosis) -> dict[str, Any]:
    """One steady step of the window, the nearest to the median."""
    step = None if diagnosis.details is None else diagnosis.details.step
    if step is None:
        return blocks.section("typical-step", "A typical step")
    clock = "the main thread" if step.device is None else f"GPU {step.device}"
    others = sum(lane.others for lane in step.lanes)
    shown = sum(len(lane.slices) for lane in step.lanes)
    merged = (
        f" The {shown:,} longest slices are drawn one by one; the {others:,} others show as the"
        " share of time that they cover."
        if others
        else ""
    )
    return blocks.section(
        "typical-step",
        "A typical step",
        blocks.mini_timeline(step),
        blocks.text(
            f"Step {step.step} of {clock}, {units.duration(step.dur_ns)}: {_chosen(diagnosis)}."
            f"{_ahead(step)}{merged} `stepscope view` shows every slice.",
            "note",
        ),
    )


def _chosen(diagnosis: Diagnosis) -> str:
    """Why this step is drawn."""
    if len(diagnosis.shown.window_steps) == 1:
        return "the only steady step that was recorded in detail"
    return "of the steady steps recorded in detail, the one nearest to their median"


def _ahead(step: TypicalStep) -> str:
    """In which other steps the host is while the GPU works on this one."""
    if step.device is None:
        return ""
    named = (_STEP_NAME.fullmatch(one.name) for lane in step.lanes for one in lane.slices)
    others = sorted({int(found[1]) for found in named if found} - {step.step})
    if not others:
        return ""
    word = "step" if len(others) == 1 else "steps"
    return (
        f" Meanwhile the host is in {word} {' and '.join(map(str, others))}: it runs ahead of the"
        " GPU."
        if others[0] > step.step
        else f" In this time the host is also in {word} {' and '.join(map(str, others))}."
    )


def _record_groups(rank: RankSummary) -> StepGroups | None:
    summary = rank.steps
    if summary is None:
        return None
    first = set(summary.first_steps)
    kept = [one for one in rank.meeting.steps.records() if one.is_whole_step]
    kinds = [
        "slow at the start"
        if one.step in first
        else "recorded in detail"
        if one.window is not None
        else ""
        for one in kept
    ]
    title = f"step record of rank {rank.rank}"
    return StepGroups.of(title, [one.step for one in kept], [one.dur_ns for one in kept], kinds)


def _window_groups(rank: RankSummary) -> StepGroups | None:
    if rank.device_steps is not None:
        rows = rank.device_steps
        device = next(iter(rows["device"]), None)
        mine = [at for at, one in enumerate(rows["device"]) if one == device]
        steps = [rows["step"][at] for at in mine]
        ns = [rows["total_ns"][at] for at in mine]
        return StepGroups.of(f"the recorded window, GPU {device}", steps, ns)
    if rank.host is not None:
        rows = rank.host.steps
        title = "the recorded window, main thread"
        return StepGroups.of(title, rows["step"], rows["wall_ns"])
    return None


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
            [_finding(group[0], ranks_with(group) if several else "") for group in groups]
        ),
        blocks.text(told) if told else None,
    )


def _finding(finding: Finding, where: str) -> dict[str, Any]:
    steps = ", ".join(map(str, finding.steps[:_MOST_STEPS]))
    more = " …" if len(finding.steps) > _MOST_STEPS else ""
    now_ns = (finding.saving_ns or 0) + (finding.predicted_step_ns or 0)
    return {
        "id": finding.id,
        "title": _sentence(finding.title),
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
        blocks.text(_sentence(trials.verdict)),
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
        words = [blocks.text(f"{_sentence(one)}.", "note") for one in told]
        sections.append(blocks.section(name, _TITLES[name], *found, *words))
    left_out += [f"{', '.join(titles)}: {reason}" for reason, titles in missing.items()]
    return sections, left_out


def _has_rows(answer: DetailedAnswer) -> Iterator[bool]:
    return (bool(table.total) for table in answer.tables.values() if len(table.rows.columns) > 1)


def _labels(columns: Sequence[str]) -> Mapping[str, str]:
    return {**headings(columns), "bus_bandwidth_gb_per_s": "bus bandwidth (GB/s)"}


def _ranks(diagnosis: Diagnosis, rows: int) -> dict[str, Any]:
    if len(diagnosis.ranks) < 2:
        return blocks.section("ranks", "Ranks")
    told = between_ranks(diagnosis)
    return blocks.section(
        "ranks",
        "Ranks",
        blocks.text(_sentence(told)) if told else None,
        blocks.items(odd_ranks(diagnosis)),
        *_rank_map(diagnosis),
        blocks.table("", ranks_table(diagnosis), rows, labels=lambda _: _RANK_LABELS, shown=32),
    )


def _rank_map(diagnosis: Diagnosis) -> list[blocks.Block]:
    """Every rank over its steps, bounded, and what is left out."""
    found = rank_steps(diagnosis.ranks)
    if found is None:
        return []
    left_out = [
        f"{number:,} {words if number == 1 else more}"
        for number, words, more in (
            (found.left_out_ranks, "rank with less", "ranks with less"),
            (found.left_out_steps, "earlier step", "earlier steps"),
        )
        if number
    ]
    rest = f" Left out: {' and '.join(left_out)}." if left_out else ""
    drawn = {
        "is": "rank_steps",
        "ranks": list(found.ranks),
        "steps": list(found.steps),
        "own_ns": [list(row) for row in found.own_ns],
    }
    known = [one for row in found.own_ns for one in row if one is not None]
    words = (
        "Each rank's steps in the recorded window without exposed communication: what it took by "
        f"itself, the most first, from {units.duration(min(known))} (palest) to "
        f"{units.duration(max(known))}.{rest} `stepscope view` maps other parts and all ranks."
    )
    return [drawn, blocks.text(words, "note")]


def _metrics(diagnosis: Diagnosis, rows: int) -> dict[str, Any]:
    """What the monitor sampled beside the ranks: GPUs, then the host."""
    several = len(diagnosis.ranks) > 1
    sampled = [(rank.rank, rank.metrics) for rank in diagnosis.ranks if rank.metrics is not None]
    gpus = [_gpus(rank, found.gpus, several) for rank, found in sampled]
    hosts = [_host(rank, found.host, several) for rank, found in sampled]
    labels = {
        "gpu": "GPU", "power": "power (W)", "power_peak": "peak (W)", "energy": "energy (Wh)",
        "heat": "hottest (°C)", "cpus": "CPUs used",
    }  # fmt: skip

    def named(columns: Sequence[str]) -> Mapping[str, str]:
        return {**headings(columns), **labels}

    scope = [
        f"{units.count(found.samples)} samples"
        + (f" over {units.duration(found.span_ns)}" if found.span_ns else "")
        for _, found in sampled[:1]
    ]
    return blocks.section(
        "metrics",
        "Hardware",
        blocks.table("GPUs", pl.concat(gpus), rows, labels=named) if gpus else None,
        blocks.table("Host", pl.concat(hosts), rows, labels=named) if hosts else None,
        blocks.text(f"{scope[0]}{' of the first rank' if several else ''}.", "note")
        if scope
        else None,
    )


def _gpus(rank: int, gpus: pl.DataFrame, several: bool) -> pl.DataFrame:
    columns = {
        "gpu": pl.concat_str(
            pl.col("index").cast(pl.String), "name", separator=" ", ignore_nulls=True
        ),
        "busy_share": pl.col("utilization_percent") / 100,
        "tensor_share": pl.col("tensor_percent") / 100,
        "memory_peak_bytes": pl.col("memory_peak_bytes"),
        "memory_total_bytes": pl.col("memory_total_bytes"),
        "power": pl.col("power_watts"),
        "power_peak": pl.col("power_peak_watts"),
        "energy": pl.col("energy_joules") / 3600,
        "heat": pl.col("temperature_peak_celsius"),
        "throttled_share": pl.col("throttled_share"),
    }
    return _of_rank(rank, gpus.select(**_numbers(columns, ("gpu",))), several)


def _host(rank: int, host: pl.DataFrame, several: bool) -> pl.DataFrame:
    columns = {
        "cpu_busy_share": pl.col("cpu_percent") / 100,
        "cpus": pl.col("process_percent") / 100,
        "resident_memory_peak_bytes": pl.col("process_memory_peak_bytes"),
        "control_group_peak_bytes": pl.col("group_memory_peak_bytes"),
        "control_group_limit_bytes": pl.col("group_memory_limit_bytes"),
        "held_back_share": pl.col("throttled_percent") / 100,
    }
    return _of_rank(rank, host.select(**_numbers(columns)), several)


def _numbers(columns: Mapping[str, pl.Expr], texts: Sequence[str] = ()) -> dict[str, pl.Expr]:
    return {
        name: value.cast(pl.String if name in texts else pl.Float64)
        for name, value in columns.items()
    }


def _of_rank(rank: int, frame: pl.DataFrame, several: bool) -> pl.DataFrame:
    return frame.select(pl.lit(rank).alias("rank"), pl.all()) if several else frame


def _environment(diagnosis: Diagnosis) -> dict[str, Any]:
    job, details = diagnosis.run.job, diagnosis.details
    pairs: list[tuple[str, str]] = []
    if job is not None:
        started = datetime.datetime.fromtimestamp(job.created_ns / 1e9, datetime.timezone.utc)
        pairs += [
            ("Run", job.name),
            ("Started", f"{started:%Y-%m-%d %H:%M:%S} UTC"),
            ("Command", " ".join(job.command)),
            ("Directory", job.working_directory),
            ("Machine", job.host),
            ("Platform", job.platform),
            ("CPUs", str(job.cpu_count or "")),
            ("GPUs", ", ".join(job.devices) or "none in use"),
            ("Ranks", str(job.world_size)),
            *(job.versions.items()),
        ]
    if details is not None:
        recording = details.recording
        pairs += [
            ("Trace", recording.path),
            ("Written by", recording.producer),
            ("Accelerator", recording.accelerator or ""),
            ("GPUs in it", ", ".join(recording.gpus)),
            ("Backend", recording.backend or ""),
            *((key, str(value)) for key, value in recording.header.items() if key not in _FORMAL),
        ]
    return blocks.section("environment", "Environment", blocks.facts(pairs))


def _left_out(diagnosis: Diagnosis, more: Sequence[str]) -> dict[str, Any]:
    """What this page does not show: unread, unknown, excluded, cut."""
    told = [_sentence(one) for one in (*notes(diagnosis), *more)]
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
