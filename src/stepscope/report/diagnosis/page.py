"""The diagnosis as a page in one file, to look at, to print, and to send to a colleague."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.advice.job.rank_steps import rank_steps
from stepscope.analysis.questions import question
from stepscope.report import figures, units
from stepscope.report.diagnosis.blocks import findings_of, hardware
from stepscope.report.diagnosis.sentences import (
    RANK_COLUMNS,
    besides,
    between_ranks,
    compute_rows,
    compute_title,
    header,
    ladder_notes,
    next_limit,
    notes,
    odd_ranks,
    partition_basis,
    partition_scope,
    ranks_in_order,
    speeds,
    step_basis,
    together,
    work,
)
from stepscope.report.document import (
    Bars,
    Block,
    DataTable,
    Facts,
    Items,
    Line,
    Page,
    Section,
    Table,
)
from stepscope.report.pictures import kernel_points, rank_pictures
from stepscope.report.scope import describe_scope
from stepscope.report.trial import trials_table
from stepscope.run.figures import sentence

if TYPE_CHECKING:
    from stepscope.advice.diagnosis import Diagnosis
    from stepscope.advice.rank.window_details import DetailedAnswer, TypicalStep
    from stepscope.analysis.selection.rows import Beginning

_MOST_NOTES = 200
_LADDER = (
    "The step with one more thing fixed on each line, all above it included, and what limits it "
    "then. Hatched: what that takes away."
)
_COMMON = ("trace", "profile", "report", "chrome_trace", "traces", "output")
"""Names of files that do not say of which training they are."""
_TITLES = {
    "kernels": "Kernels",
    "operators": "Operators",
    "modules": "Modules",
    "communication": "Communication",
    "memory": "Memory",
}


_STEP_NAME = re.compile(r"ProfilerStep#(\d+)")
_FORMAL = ("schemaVersion", "baseTimeNanoseconds", "displayTimeUnit")
"""Keys of a trace's header that say nothing of the training."""
_LABELS = {"bus_bandwidth_gb_per_s": "bus bandwidth (GB/s)"}


def page(diagnosis: Diagnosis, rows: int) -> Page:
    """The diagnosis as a page."""
    details, left_out = _details(diagnosis, rows)
    title, amount = compute_title(diagnosis.shown)
    made_of = tuple(compute_rows(diagnosis.shown))
    computed = (Facts(made_of), _note(f"{sentence(amount)}.")) if made_of else ()
    sections = (
        _verdict(diagnosis),
        _step(diagnosis),
        Section("compute", title, computed),
        _steps(diagnosis),
        _typical_step(diagnosis),
        _findings(diagnosis),
        _ladder(diagnosis),
        _tried(diagnosis),
        *details,
        _ranks(diagnosis),
        Section("metrics", "Hardware", tuple(hardware(diagnosis.ranks))),
        _environment(diagnosis),
        _left_out(diagnosis, left_out),
    )
    location = diagnosis.run.location
    name = _title(location)
    return Page(name, header(diagnosis), "" if location == name else location, sections)


def _note(text: str) -> Line:
    return Line(text, role="note")


def _title(location: str) -> str:
    """The name of the file or directory, with the directory's where the name is everybody's."""
    path = Path(location)
    if path.name.split(".")[0] in _COMMON and path.parent.name:
        return f"{path.parent.name}/{path.name}"
    return path.name or location


def _verdict(diagnosis: Diagnosis) -> Section:
    text = diagnosis.verdict
    finding = next((one for one in diagnosis.findings if text.startswith(f"{one.id}: ")), None)
    if finding is not None:
        text = text.removeprefix(f"{finding.id}: ")
    return Section(
        "verdict",
        "Verdict",
        (
            Line(sentence(text), role="verdict"),
            Line(finding.advice, role="lead") if finding else None,
            Line(f"{next_limit(diagnosis)}.") if next_limit(diagnosis) else None,
        ),
    )


def _findings(diagnosis: Diagnosis) -> Section:
    overlap = Line(together(diagnosis)) if diagnosis.findings else None
    return Section("findings", "Findings", (findings_of(diagnosis), overlap))


def _ladder(diagnosis: Diagnosis) -> Section:
    rungs = diagnosis.shown.ladder.rungs
    drawn = figures.ladder([(r.name, r.step_ns, r.limit, r.limit_text) for r in rungs])
    lead = Line(_LADDER) if drawn else None
    notes_below = map(_note, ladder_notes(diagnosis))
    return Section("ladder", "How far it can go", (lead, drawn, *notes_below))


def _tried(diagnosis: Diagnosis) -> Section:
    trials = diagnosis.run.trials
    if trials is None:
        return Section("tried", "Tried")
    tables = (block for block in trials_table(trials) if isinstance(block, Table))
    return Section("tried", "Tried", (Line(sentence(trials.verdict)), *tables))


def _details(diagnosis: Diagnosis, rows: int) -> tuple[list[Section], list[str]]:
    """Sections about the window, and what they leave out."""
    details = diagnosis.details
    if details is None:
        return [], []
    sections, left_out = [], list(details.notes)
    general = {note for one in details.answers if _shown(one) for note in one.notes}
    missing: dict[str, list[str]] = {}
    for answer in details.answers:
        name = answer.question
        titles = question(name).titles if len(answer.tables) > 1 else {}
        found = []
        for field, table in _shown(answer).items():
            found.append(DataTable(titles.get(field, ""), table, labels=_LABELS))
            if table.total > rows:
                left_out.append(
                    f"{_TITLES[name]}: {table.total - rows:,} rows beyond the first {rows}; "
                    f"`stepscope show {name}` has them all"
                )
        if not found:
            reasons = [note for note in answer.notes if note not in general] or answer.notes
            for reason in reasons or ("nothing there",):
                missing.setdefault(reason, []).append(_TITLES[name])
            continue
        drawn: tuple[Block, ...] = ()
        if name == "kernels":
            drawn = tuple(kernel_points(answer.tables["kernels"].rows.to_dicts()))
        lines = (f"Totals, not per step. {describe_scope(answer.scope)}", *answer.notes)
        text = (_note(f"{sentence(one)}.") for one in lines)
        sections.append(Section(name, _TITLES[name], (*drawn, *found, *text)))
    left_out += [f"{', '.join(titles)}: {reason}" for reason, titles in missing.items()]
    return sections, left_out


def _shown(answer: DetailedAnswer) -> dict[str, Beginning]:
    """Its tables, without those that have no rows or nothing but names."""
    return {
        field: table
        for field, table in answer.tables.items()
        if table.total and len(table.rows.columns) > 1
    }


def _left_out(diagnosis: Diagnosis, more: Sequence[str]) -> Section:
    lines = [sentence(one) for one in (*notes(diagnosis), *more)]
    if len(lines) > _MOST_NOTES:
        rest = len(lines) - _MOST_NOTES
        lines = [
            *lines[:_MOST_NOTES],
            f"And {rest:,} more notes: see `stepscope report --format json`",
        ]
    if len(diagnosis.ranks) > 1 and diagnosis.details is not None:
        lines.append(
            f"Step, kernels, operators and the other tables are those of rank "
            f"{diagnosis.shown.rank}; `stepscope show` has those of all"
        )
    return Section("left-out", "What was left out", (Items(tuple(lines)),))


def _step(diagnosis: Diagnosis) -> Section:
    shown, record = diagnosis.shown, diagnosis.shown.steps
    whole = "whole file" if shown.is_whole_file else "step"
    large = [] if shown.step_ns is None else [(whole, units.duration(shown.step_ns))]
    large += [] if record is None else speeds(record)
    return Section(
        "step",
        "Where the step goes",
        (
            figures.numbers(large),
            Line(sentence(step_basis(diagnosis, shown))),
            _note(f"{sentence(work(shown))}.") if work(shown) else None,
            Bars(shown.shown_partition) if shown.shown_partition else None,
            _note(f"{sentence(partition_basis(shown))}.") if shown.partition else None,
            _note(f"{partition_scope(shown)}.") if partition_scope(shown) else None,
            _note(sentence(besides(record))) if record and record.other_kinds else None,
        ),
    )


def _steps(diagnosis: Diagnosis) -> Section:
    """Every step: of the step record, else of the window."""
    has_several = bool(diagnosis.strips) and len(diagnosis.strips[0].first) > 1
    return Section("steps", "Steps", (figures.strips(diagnosis.strips[:1]),) if has_several else ())


def _typical_step(diagnosis: Diagnosis) -> Section:
    """One steady step of the window, the nearest to the median."""
    step = None if diagnosis.details is None else diagnosis.details.step
    if step is None:
        return Section("typical-step", "A typical step")
    clock = "the main thread" if step.device is None else f"GPU {step.device}"
    others = sum(lane.others for lane in step.lanes)
    shown = sum(len(lane.slices) for lane in step.lanes)
    merged = (
        f" The {shown:,} longest slices are drawn one by one; the {others:,} others show as the"
        " share of time that they cover."
        if others
        else ""
    )
    text = (
        f"Step {step.step} of {clock}, {units.duration(step.dur_ns)}: {_chosen(diagnosis)}."
        f"{_ahead(step)}{merged} `stepscope view` shows every slice."
    )
    return Section("typical-step", "A typical step", (figures.mini_timeline(step), _note(text)))


def _chosen(diagnosis: Diagnosis) -> str:
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


def _ranks(diagnosis: Diagnosis) -> Section:
    if len(diagnosis.ranks) < 2:
        return Section("ranks", "Ranks")
    compared = None if diagnosis.windows is None else diagnosis.windows.compared
    return Section(
        "ranks",
        "Ranks",
        (
            Line(sentence(between_ranks(diagnosis))),
            Items(tuple(odd_ranks(diagnosis))),
            *(
                ()
                if compared is None
                else rank_pictures(compared.arrivals, compared.sets, diagnosis.lanes)
            ),
            *_rank_strips(diagnosis),
            *_rank_map(diagnosis),
            DataTable("", ranks_in_order(diagnosis), labels=RANK_COLUMNS, shown=32),
        ),
    )


def _rank_strips(diagnosis: Diagnosis) -> tuple[Block, ...]:
    """The steps of each rank on one scale, and how many ranks are left out."""
    if len(diagnosis.strips) < 2 or all(len(one.first) < 2 for one in diagnosis.strips):
        return ()
    rest = len(diagnosis.ranks) - len(diagnosis.strips)
    text = f" {units.plural(rest, 'more rank')} left out." if rest else ""
    note = _note(f"Each rank's steps on one scale, the one shown above first.{text}")
    return figures.strips(diagnosis.strips) or note, note


def _rank_map(diagnosis: Diagnosis) -> tuple[Block, ...]:
    """Every rank over its steps, bounded, and what is left out."""
    found = rank_steps(diagnosis.ranks)
    if found is None:
        return ()
    left_out = [
        f"{number:,} {text if number == 1 else more}"
        for number, text, more in (
            (found.left_out_ranks, "rank with less", "ranks with less"),
            (found.left_out_steps, "earlier step", "earlier steps"),
        )
        if number
    ]
    rest = f" Left out: {' and '.join(left_out)}." if left_out else ""
    known = [one for row in found.own_ns for one in row if one is not None]
    text = (
        "Each rank's steps in the recorded window without exposed communication: what it took by "
        f"itself, the most first, from {units.duration(min(known))} (faintest) to "
        f"{units.duration(max(known))}.{rest} `stepscope view` maps other parts and all ranks."
    )
    return figures.rank_steps(found), _note(text)


def _environment(diagnosis: Diagnosis) -> Section:
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
    return Section("environment", "Environment", (Facts(tuple(pairs)),))
