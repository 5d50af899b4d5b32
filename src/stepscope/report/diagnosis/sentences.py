"""The sentences of a diagnosis."""

from __future__ import annotations

import polars as pl

from stepscope.advice.diagnosis import Diagnosis
from stepscope.advice.rank.summary import RankSummary
from stepscope.analysis.ranks.clocks import Clock
from stepscope.analysis.record.summary import NOTABLY_LONGER, StepSummary, is_uneven
from stepscope.report import units
from stepscope.report.diagnosis.tables import ranks_table
from stepscope.report.scope import describe_scope
from stepscope.run.figures import rank_names, sentence, significant
from stepscope.run.layout import PY_SPY_FLAME_GRAPH
from stepscope.run.manifest import RECORDS_NONE
from stepscope.skew.rank_skew import RankSkew
from stepscope.terminal.plain_text import quoted
from stepscope.trace.problems import counted

MOST_RANKS = 16
_MOST_ODD = 6
_MOST_PARTS = 6
_ROUNDING = 0.005
_NOTABLY_OTHER = 0.01
_NO_END = (
    "no end was recorded: the process is still running, was killed, or ended itself (os._exit)"
)
_NO_REASON = "the manifest does not say why"
_STATES = {"failed": "could not be saved", "skipped": "was skipped", "removed": "was removed"}
_STILL_MADE = "its files were not finished when the manifest was written"
RANK_COLUMNS = {
    "rank": "rank",
    "steady_steps": "steps",
    "step_ns": "step",
    "input_wait_ns": "input wait",
    "longest_ns": "longest",
    "wait_ns": "waiting costs",
    "own_ns": "without it",
    "last": "arrives last",
    "record_wait_ns": "wait for others",
}


def header(diagnosis: Diagnosis) -> str:
    """How many ranks, what they run on, and whether the folder has older runs."""
    count = len(diagnosis.ranks)
    if diagnosis.run.unrelated:
        return (
            f"{diagnosis.run.unrelated} traces that are not known to be ranks of one run; this is"
            f" the newest: {diagnosis.run.windows[0].trace_path}"
        )
    job = diagnosis.run.job
    world = job.world_size if job else count
    parts = [units.plural(count, "rank")]
    if world > count:
        parts[-1] += f" of {world}"
    if job is not None:
        if "torch" in job.versions:
            parts.append(f"torch {job.versions['torch']}")
        parts.append(job.devices[0] if job.devices else f"{job.cpu_count} CPUs, no GPU in use")
    run = diagnosis.run
    if run.empty:
        count = run.others + 1 + run.empty
        left_out = units.plural(run.empty, "newer one")
        has = "has" if run.empty == 1 else "have"
        parts.append(f"of {count} runs in {run.path.parent}: {left_out} {has} recorded nothing")
    elif run.others:
        parts.append(f"the newest of {run.others + 1} runs in {run.path.parent}")
    return "  ·  ".join(parts)


def step_basis(diagnosis: Diagnosis, rank: RankSummary) -> str:
    """What the shown step time is."""
    whose = f"rank {rank.rank}: " if len(diagnosis.ranks) > 1 else ""
    summary = rank.steps
    if summary is None and rank.is_cut_off:
        if rank.step_ns is None:
            return f"{whose}the file is cut off and has no step whose length is certain"
        steps = units.plural(len(rank.window_steps), "annotated step")
        text = f"{whose}mean of {steps} on the host; recording slows them down"
        return text + _median(rank.step_ns, rank.window_median_ns)
    if rank.is_whole_file:
        return f"{whose}the whole file: it has no steps; recording slows it down"
    if summary is None:
        # How long a step takes on the device is not known where its work was not recorded.
        clock = " on the host" if rank.missing and rank.device is None else ""
        if rank.is_first_step_alone:
            return f"{whose}the only step in the trace, its first{clock}; recording slows it down"
        if len(rank.window_steps) == 1 and not rank.step_source:
            return f"{whose}the only steady step in the trace{clock}; recording slows it down"
        steps = rank.step_source or "the steps in the trace"
        text = f"{whose}mean of {steps}{clock}; recording slows them down"
        return text + _median(rank.step_ns, rank.window_median_ns)
    count, left_out = len(summary.steps), _left_out(summary)
    if summary.holds_only_first_steps:
        text = "the first step" if count == 1 else f"mean of the first {count} steps"
    elif count == 1:
        text = "the only steady step"
    else:
        text = f"mean of {units.plural(count, 'steady step')}"
    text = whose + text + (f" (excluding {left_out})" if left_out else "")
    if summary.shift is not None:
        shift = summary.shift  # steps before and after are not alike: the mean is neither's
        before, after = units.duration(shift.before_ns), units.duration(shift.after_ns)
        return f"{text}; the median is {before} before step {shift.step}, and {after} from then on"
    return text + _median(summary.mean_ns, summary.median_ns)


def work(rank: RankSummary) -> str:
    """That a rank does not train, and what shows it; empty where it trains or that is unknown."""
    purpose = rank.purpose
    if purpose is None or not purpose.is_inference:
        return ""
    return f"{purpose.work.value}: {purpose.evidence}"


def _median(mean_ns: int | None, median_ns: int | None) -> str:
    """The median, where the mean is so much above it that some steps must be far longer."""
    if mean_ns is None or median_ns is None or not is_uneven(mean_ns, median_ns):
        return ""
    return f"; the median is {units.duration(median_ns)}, because some steps take far longer"


def partition_basis(rank: RankSummary) -> str:
    """What the partition divides."""
    partition = rank.partition
    if partition is None:
        return ""
    text = partition.basis
    recorded = rank.recorded_partition
    if rank.is_fitted and recorded is not None:
        text += f", {units.plural(recorded.steps, 'recorded step')}, fitted to the step record"
    elif not text.endswith("one step"):
        text += f", {units.plural(partition.steps, 'step')}"
    factor = rank.steps.recording_factor if rank.steps is not None else None
    if rank.host is not None and factor is not None and factor >= NOTABLY_LONGER:
        text += f"; recording made steps {factor:.2f}× as long"
    window = rank.window
    if rank.windows > 1 and window is not None and window.trace_path is not None:
        path = window.trace_path
        name = path.name if window.record is None else f"{path.parent.name}/{path.name}"
        text += f"; window {window.index + 1} of {rank.windows}: {name}"
    return text


def partition_scope(rank: RankSummary) -> str:
    """What of the window the partition covers; empty if it divides the step record's time."""
    if rank.scope is None or not (rank.steps is None or rank.is_fitted):
        return ""
    return describe_scope(rank.scope)


def _left_out(summary: StepSummary) -> str:
    excluded = summary.excluded
    or_warming_up = " or in a warm-up" if summary.host.is_on_device else ""
    text = [
        (excluded.first, "slow at the start"),
        (excluded.compiled, "compiling"),
        (excluded.stalled, "stalled"),
        (excluded.recorded, f"recorded in detail{or_warming_up}"),
        (excluded.after_window, "slow right after that"),
        (excluded.part_of_round, "of an incomplete epoch or round of batches"),
        (excluded.partial, "partial"),
    ]
    return ", ".join(f"{count} {word}" for count, word in text if count)


def besides(summary: StepSummary) -> str:
    """What the loop did outside training steps."""
    kinds = (
        counted(f"{other.kind} {units.duration(other.total_ns)}", other.times)
        for other in summary.other_kinds
    )
    return f"outside the steps: {', '.join(kinds)}"


def speeds(summary: StepSummary) -> list[tuple[str, str]]:
    """How fast the steps are, each a label and a text; the longest step is the last."""
    found = [("step", significant(1e9 / summary.mean_ns))] if summary.mean_ns else []
    for unit, rate in (
        ("token", summary.tokens_per_second),
        ("sample", summary.samples_per_second),
    ):
        if rate is not None:
            found.append((unit, units.count(round(rate))))
    rates = [(f"{unit}/s" if text == "1" else f"{unit}s/s", text) for unit, text in found]
    return [*rates, ("longest step", units.duration(summary.worst_ns))]


def between_ranks(diagnosis: Diagnosis) -> str:
    """Which rank arrives last, by collectives or by step records; empty if unknown."""
    between = diagnosis.between
    if between is None:
        return _skew(diagnosis.skew)
    if between.straggler is None:
        return ""
    row = between.table.filter(rank=between.straggler).row(0, named=True)
    if between.alternating is not None:
        text = (
            "no one rank is late, they take turns: the others wait for "
            f"{between.alternating.text()}; waiting costs each "
            f"{units.duration(between.wait_ns)} per step on average"
        )
    elif between.is_uneven:
        text = (
            "no one rank is late, they take turns within each step; "
            f"waiting costs each "
            f"{units.duration(between.wait_ns)} per step on average"
        )
    else:
        late, share = between.late, units.percent(between.share_for_late)
        text = (
            f"rank {between.straggler} arrives last in {row['last']} of {row['collectives']} "
            f"collectives, and {share} of all waiting is for it"
        )
        if len(late) > 1:
            text = f"{share} of all waiting in collectives is for {rank_names(late)}"
        text += (
            f"; waiting costs the others {units.duration(between.others_wait_ns)} per step on "
            "average"
        )
    if between.report.clock is Clock.ALIGNED:
        text += f" (clocks aligned: {between.report.clock_reason})"
    return text


def _skew(skew: RankSkew | None) -> str:
    if skew is None:
        return ""
    device = "on the device, " if skew.is_device else ""
    error = f", ± {units.duration(skew.error_ns)}" if skew.error_ns else ""
    basis = f"waiting: {device}from {skew.basis}, {skew.steps} steps that all ranks have{error}"
    return f"{skew.accusation()} ({basis})" if skew.accuses else basis


def odd_ranks(diagnosis: Diagnosis) -> list[str]:
    """What sets single ranks apart, the largest difference first."""
    rows = diagnosis.odd_parts.head(_MOST_ODD).iter_rows(named=True)
    return [
        f"rank {row['rank']}: '{row['part']}' takes {units.duration(row['per_step_ns'])} per step, "
        f"{units.duration(row['others_ns'])} on the other ranks"
        for row in rows
    ]


def rank_rows(diagnosis: Diagnosis) -> tuple[list[str], list[tuple[str, ...]]]:
    """The table of ranks for people: headings of the columns in which any rank has a value, rows.

    At most `MOST_RANKS` rows, in the order of `ranks_in_order`.
    """
    table = ranks_in_order(diagnosis)
    kept = _known_columns(table)
    rows = table.head(MOST_RANKS).iter_rows(named=True)
    cells = [tuple(_rank_cell(name, row) for name in kept) for row in rows]
    return [RANK_COLUMNS[name] for name in kept], cells


def ranks_in_order(diagnosis: Diagnosis) -> pl.DataFrame:
    """The table of ranks: the rank that waits least first, or else the slowest.

    Of ranks that wait equally little, the one that the others wait for most often comes first.
    """
    table = ranks_table(diagnosis)
    kept = _known_columns(table)
    waits = [name for name in ("wait_ns", "record_wait_ns") if name in kept]
    by, largest = (waits[0], False) if waits else ("step_ns", True)
    return table.sort(by, "last", "rank", descending=[largest, True, False], nulls_last=True)


def _known_columns(table: pl.DataFrame) -> list[str]:
    """Columns in which any rank has a value; of the two wait columns, the more exact one."""
    known = [name for name in RANK_COLUMNS if table[name].null_count() < len(table)]
    return [name for name in known if name != "record_wait_ns" or "wait_ns" not in known]


def _rank_cell(name: str, row: dict[str, int | None]) -> str:
    number = row[name]
    if number is None:
        return "–"
    if name == "last":
        return f"{number} of {row['collectives']}"
    return units.duration(number) if name.endswith("_ns") else str(number)


def communication(rank: RankSummary) -> str:
    """How much the GPUs communicate, and how much of it computation hides; empty without any."""
    if rank.communication is None or not rank.communication[0]:
        return ""
    total_ns, hidden_ns = rank.communication
    return (
        f"communication in all: {units.duration(total_ns)}, of which computation hides "
        f"{units.duration(hidden_ns)} ({units.percent(hidden_ns / total_ns)})"
    )


def together(diagnosis: Diagnosis) -> str:
    """What all findings of the shown rank save together; empty for fewer than two savings.

    Nothing is said of overlaps where the savings do add up, apart from rounding.
    """
    rank = diagnosis.shown
    step_ns, together_ns = rank.step_ns, rank.together_ns
    savings = [one.saving_ns for one in rank.findings if one.saving_ns is not None]
    if step_ns is None or together_ns is None or len(savings) < 2:
        return ""
    who = f"All of rank {rank.rank}'s findings" if len(diagnosis.ranks) > 1 else "All of them"
    most = next((one.up_to for one in rank.findings if one.saving_ns and one.up_to), "")
    is_whole = any(one.is_of_whole_file for one in rank.findings)
    text = ""
    if sum(savings) - together_ns > _ROUNDING * together_ns:
        text = ". They overlap, so their savings do not add up"
    return (
        f"{who} together save {most}{units.duration(together_ns)} "
        f"{'in the whole file' if is_whole else 'per step'}: "
        f"{units.duration(step_ns)} → {units.duration(step_ns - together_ns)}{text}."
    )


def next_limit(diagnosis: Diagnosis) -> str:
    """What limits the step of the rank shown after its first fix, which continues the verdict."""
    text = diagnosis.shown.next_limit(diagnosis.verdict)
    if text and len(diagnosis.ranks) > 1:
        text = f"on rank {diagnosis.shown.rank}, {text}"
    return sentence(text)


def ladder_notes(diagnosis: Diagnosis) -> list[str]:
    """What the ladder rests on, and what is missing for more; empty without a ladder."""
    ladder = diagnosis.shown.ladder
    if not ladder.rungs:
        return []
    lines = [f"{one}." for one in (*ladder.rests_on, *ladder.missing)]
    if len(diagnosis.ranks) > 1:
        whose = f"rank {diagnosis.shown.rank}'s step alone"
        lines.append(f"This is {whose}: another rank may set the pace before the last rung.")
    return lines


def notes(diagnosis: Diagnosis) -> list[str]:
    """What could not be read, what went wrong while recording, and what limits the answer."""
    lines = [*diagnosis.run.problems, *diagnosis.notes]
    for rank_run, rank in zip(diagnosis.run.ranks, diagnosis.ranks, strict=True):
        prefix = f"rank {rank.rank}: " if len(diagnosis.ranks) > 1 else ""
        manifest = rank_run.manifest
        if manifest is not None:
            lacks_window = "no window" in manifest.ended and RECORDS_NONE not in manifest.ended
            if manifest.state != "finished" or lacks_window:
                ended = manifest.ended or _NO_END
                # "finished: finished after 3 steps" would say it twice.
                is_said = ended.startswith(manifest.state)
                lines.append(prefix + ended if is_said else f"{prefix}{manifest.state}: {ended}")
            for window in manifest.windows:
                if window.state != "complete":
                    is_made = window.state == "saving"
                    reason = window.reason or (_STILL_MADE if is_made else _NO_REASON)
                    text = _STATES.get(window.state, f"is {window.state}")
                    lines.append(f"{prefix}window {window.index} {text}: {reason}")
                lines += [
                    f"{prefix}window {window.index}: {artifact.problem}"
                    for artifact in window.artifacts
                    if artifact.problem
                ]
            lines += [
                f"{prefix}capture: {problem.where}: {problem.message}"
                for problem in manifest.problems
            ]
        lines += [prefix + note for note in rank.notes]
    job = diagnosis.run.job
    has_logs = job is not None and bool(job.options.get("memory_log"))
    if has_logs and (log := diagnosis.run.ranks[0].memory_log_path) is not None:
        others = ", and one for each other rank" if len(diagnosis.run.ranks) > 1 else ""
        lines.append(f"the memory every few steps: {log}{others}")
    return (
        lines
        + [
            f"py-spy sampled its Python functions: stepscope report {quoted(path)}"
            for path in diagnosis.run.sampled
        ]
        + [
            f"py-spy drew its Python functions: open in a browser: {path}"
            for recording in diagnosis.run.external
            for path in recording.files
            if path.name == PY_SPY_FLAME_GRAPH
        ]
    )


def compute_rows(rank: RankSummary) -> list[tuple[str, str]]:
    """What GPU or CPU compute, as labels and texts; empty if that is a small part of the step."""
    summary = rank.compute
    if summary is None or not summary.kinds:
        return []
    lists = (
        ("by kind", summary.kinds[:_MOST_PARTS]),
        ("by operator", summary.operators),
        ("by shape", summary.shapes),
        ("by module", summary.places),
    )
    rows = [
        (label, ", ".join(f"{part.name} {units.percent(part.share)}" for part in parts))
        for label, parts in lists
        if parts
    ]
    attained = summary.product_attained_share
    reached = [
        text.format(units.percent(share))
        for text, share in (
            ("MFU {}", summary.mfu_share),
            (f"{summary.product_names()} at {{}} of the GPU's limit", attained),
            ("elementwise kernels at {} of the memory bandwidth", summary.bandwidth_share),
        )
        if share is not None
    ]
    if reached:
        rows.append(("efficiency", ", ".join(reached)))
    if summary.threads:
        rows.append(("threads", summary.threads))
    if summary.unclassified:
        rows.append(("not classified", summary.unclassified))
    return rows


def compute_title(rank: RankSummary) -> tuple[str, str]:
    """The heading above `compute_rows`, and how much that is."""
    summary = rank.compute
    if summary is None:
        return "", ""
    each_ns = summary.total_ns / max(1, summary.steps) / summary.devices
    per = "per step" if summary.steps else "in the whole file"
    if summary.is_on_cpu:
        calls = f"{summary.calls // max(1, summary.steps):,} calls"
        return "What the CPU computes", f"{units.duration(each_ns)} of operators {per}, {calls}"
    apart = _not_in_compute(rank, round(each_ns))
    mean = ", on each GPU, their mean" if summary.devices > 1 else ""
    return "What the GPU computes", f"{units.duration(each_ns)} of kernels {per}{mean}{apart}"


def _not_in_compute(rank: RankSummary, kernels_ns: int) -> str:
    """Why the kernels' time is another than that of the part `compute`, where one can see it."""
    compute_ns = rank.compute_ns or 0
    if abs(compute_ns - kernels_ns) <= _NOTABLY_OTHER * compute_ns:
        return ""
    if kernels_ns < compute_ns:
        return f"; with memory fills it is the {units.duration(compute_ns)} of compute"
    return f"; where they overlap, each counts: {units.duration(compute_ns)} of the step has any"
