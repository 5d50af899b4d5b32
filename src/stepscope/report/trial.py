"""What trials of fixes brought: the table, the best, and what to write."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stepscope.opening.trials import (
    CHANGED,
    CLOSE,
    NOT_APPLIED,
    REDRAWN,
    TrialRecord,
    TrialsRecord,
    UntriedRecord,
)
from stepscope.report import units
from stepscope.report.document import (
    Block,
    Code,
    Column,
    Gap,
    Heading,
    Items,
    Labelled,
    Line,
    Look,
    Only,
    Table,
    whole,
)
from stepscope.report.plain import plain
from stepscope.run.figures import percent
from stepscope.terminal.plain_text import quoted

if TYPE_CHECKING:
    from stepscope.report.outputs import Layout

COLUMNS = ("Fix", "Promised", "Measured", "95% interval", "Losses", "Memory", "Verdict")
_DISTURBED = 0.1
"""Share of the CPUs from which `stepscope.trial.processes` counts a process as disturbed."""


def document(record: TrialsRecord, _layout: Layout) -> Iterator[Block]:
    """What came of the trials."""
    yield Labelled("Verdict", (Line(record.verdict, "bold"),))
    yield whole(unchanged(record))
    yield from trials_table(record)
    winner = record.winner
    if winner is not None:
        yield Gap()
        yield Heading("Write")
        applied = (f"# applied: {place}" for place in winner.applied)
        overrides = (f"# instead of {place}" for place in winner.overrides)
        yield Code((*winner.lines, *applied, *overrides))
        if (error := winner.promise_error) is not None:
            way = "too high" if error > 0 else "too low"
            yield whole(f"  (the promised step was {percent(abs(error))} {way})")
        if winner.risks:
            yield whole(f"  Risks: {winner.risks}")
    if lines := notes(record):
        yield Gap()
        yield Heading("Notes")
        yield Items(tuple(lines), indent=2)
    further = (whole(f"  {line}") for line in next_commands(record))
    yield Only("terminal", (Gap(), Heading("Look further"), *further))
    yield Gap()
    yield whole(costs(record))


def trials_table(record: TrialsRecord) -> Iterator[Block]:
    """The table of trials, below an empty line; nothing without trials."""
    found = rows(record)
    if found:
        yield Gap()
        columns = (Column(name, name in COLUMNS[1:4], name != "Fix") for name in COLUMNS)
        yield Table(tuple(columns), tuple(found), Look.RULED, gap=3, trails=True)


def to_json(record: TrialsRecord) -> Any:
    """The content of `trials.json`."""
    return plain(record)


def rows(record: TrialsRecord) -> list[tuple[str, ...]]:
    """A row per trial that ran, the fastest first, under `COLUMNS`."""
    ran = [trial for trial in record.all_trials if not _never_ran(trial)]
    measured = [trial for trial in ran if trial.ratio is not None]
    rest = [trial for trial in ran if trial.ratio is None]
    measured.sort(key=lambda trial: trial.ratio or 0.0)
    return [_row(trial, record.baseline) for trial in (*measured, *rest)]


def _never_ran(trial: TrialRecord) -> bool:
    """Whether it was known beforehand that a fix does not apply."""
    return trial.verdict == NOT_APPLIED and not trial.runs


def _row(trial: TrialRecord, baseline: TrialRecord) -> tuple[str, ...]:
    verdict = trial.verdict
    if trial.losses.verdict == CHANGED:
        verdict += ", but changes the losses"
    if trial.reason:
        verdict += f": {trial.reason}"
    return (
        trial.name,
        step_and_change(trial.promised_ratio, baseline),
        step_and_change(trial.ratio, baseline),
        interval(trial),
        losses(trial),
        memory(trial, baseline),
        verdict,
    )


def step_and_change(ratio: float | None, baseline: TrialRecord) -> str:
    """A ratio to the unchanged script as a step time and a change: "10.6 ms (−48%)"."""
    if ratio is None or baseline.step_ns is None:
        return "–"
    return f"{units.duration(ratio * baseline.step_ns)} ({change(ratio)})"


def change(ratio: float) -> str:
    """A ratio as a change with its sign: "−48%"."""
    sign = "−" if ratio < 1 else "+"
    return f"{sign}{abs(ratio - 1) * 100:.1f}%"


def interval(trial: TrialRecord) -> str:
    """The 95% interval of the change."""
    if trial.ratio_low is None or trial.ratio_high is None:
        return "–"
    return f"{change(trial.ratio_low)} to {change(trial.ratio_high)}"


def losses(trial: TrialRecord) -> str:
    """How the losses compare."""
    found = trial.losses
    if trial.ratio is None and not found.compared:
        return "–"
    if found.verdict in (CLOSE, CHANGED, REDRAWN) and found.difference is not None:
        return f"{found.verdict} ({units.percent(found.difference)})"
    return found.verdict


def memory(trial: TrialRecord, baseline: TrialRecord) -> str:
    """The change of the peak memory: of the GPU if there is one, else of the process.

    For settings of the allocator, of what it reserved, and its retries, next to what was promised.
    """
    if trial.ratio is None:
        return "–"
    if trial.promised_reserved_bytes is not None:
        before, promised = baseline.peak_reserved_bytes, trial.promised_reserved_bytes
        text = (
            f"{_more(before, trial.peak_reserved_bytes)} reserved "
            f"(promised {_more(before, promised)})"
        )
        if trial.allocator_retries or baseline.allocator_retries:
            text += (
                f", {baseline.allocator_retries:,} → {trial.allocator_retries:,} retries "
                f"(promised {trial.promised_retries or 0:,})"
            )
        return text
    before, after = baseline.peak_device_bytes, trial.peak_device_bytes
    if not before:
        before, after = baseline.peak_resident_bytes, trial.peak_resident_bytes
    return _more(before, after)


def _more(before: int, after: int) -> str:
    sign = "−" if after < before else "+"
    return f"{sign}{units.size(abs(after - before))}"


def unchanged(record: TrialsRecord) -> str:
    """The step of the unchanged script."""
    baseline = record.baseline
    processes = "1 process" if baseline.processes == 1 else f"{baseline.processes} processes"
    return (
        f"{units.duration(baseline.step_ns or 0)} a step as it is: "
        f"{units.plural(baseline.steps, 'steady step')} of {processes}, "
        f"the first {record.warm_up} of {record.steps} left out"
    )


def costs(record: TrialsRecord) -> str:
    """What the trials cost."""
    rest_s = max(0.0, record.total_s - record.processes_s)
    text = (
        f"{units.duration(record.total_s * 1e9)} in all, of which "
        f"{units.duration(record.processes_s * 1e9)} in the script's own processes and "
        f"{units.duration(rest_s * 1e9)} beside them"
    )
    if record.load is not None:
        text += f"; load before: {record.load:.1f} per CPU"
    if record.busy:
        text += f"; other programs used {percent(statistics.median(record.busy))} of the CPUs"
    return text


def notes(record: TrialsRecord) -> list[str]:
    """What limits the answer, or is left to do."""
    found = [f"warning: {warning}" for warning in record.warnings]
    if max(record.busy, default=0.0) >= _DISTURBED:
        found.append(
            f"warning: other programs used up to {percent(max(record.busy))} of the CPUs during "
            f"the trials. Processes beside which they used {percent(_DISTURBED)} or more do not "
            "count: repeat the trials when the machine is idle"
        )
    redrawn = [one.name for one in record.all_trials if one.losses.verdict == REDRAWN]
    if redrawn:
        found.append(
            f"{', '.join(redrawn)}: random numbers for the data are drawn in another order, so the "
            "losses differ from step to step; on average they are the same"
        )
    if record.baseline.reason:
        found.append(f"the rounds ended early: {record.baseline.reason}")
    found += [
        f"{one.name} does not apply: {one.reason}" for one in record.trials if _never_ran(one)
    ]
    found += [
        f"{one.finding} has no fix that was tried.{_saving(one)} "
        f"{one.advice.partition('. ')[0].rstrip('.')}."
        for one in record.untried
    ]
    return found


def _saving(one: UntriedRecord) -> str:
    if one.promised_ratio is None:
        return ""
    return f" By the diagnosis, fixing it saves {percent(1 - one.promised_ratio)} of the step."


def next_commands(record: TrialsRecord) -> list[str]:
    """Commands that show more."""
    found = [f"stepscope report {quoted(f'{record.folder}/diagnosis')}"]
    winner = record.winner
    if winner is not None and winner.runs and record.baseline.runs:
        found.append(
            f"stepscope compare {quoted(f'{record.folder}/{record.baseline.runs[0]}')} "
            f"{quoted(f'{record.folder}/{winner.runs[0]}')}"
        )
    return found
