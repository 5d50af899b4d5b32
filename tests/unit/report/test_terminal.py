"""The terminal report as a whole: what a person sees, line by line."""

from __future__ import annotations

import dataclasses
import io
import json
import re

import polars as pl
import pytest
from rich.console import Console
from tests.support.rendered import print_blocks, print_diagnosis, print_summary
from tests.support.step_records import MS, step_records, write_run

from stepscope.advice.diagnosis import diagnose
from stepscope.advice.finding import Evidence, Finding, Severity
from stepscope.opening.reader import open_run
from stepscope.report import units
from stepscope.report.console import UNLIMITED
from stepscope.report.diagnosis import sentences
from stepscope.report.diagnosis import to_json as diagnosis_to_dict
from stepscope.report.diagnosis.tables import RANKS
from stepscope.report.document import Findings, Heading, ShownFinding
from stepscope.report.findings import findings_alike, ranks_with
from stepscope.report.render.terminal import print_block
from stepscope.run.layout import RunLayout
from stepscope.run.manifest import (
    RECORDS_NONE,
    JobRecord,
    WindowRecord,
    read_rank,
    read_record,
    write_record,
)


def slow_input():
    return step_records(
        [900] + [100] * 12, waits_ms=[0] + [60] * 12, phases_ms={"forward": 20, "backward": 15}
    )


def screen(path, width=88, printed=print_diagnosis):
    stream = io.StringIO()
    console = Console(file=stream, width=width, highlight=False, color_system=None)
    printed(diagnose(open_run(path)), console)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def test_one_step_a_second_is_no_plural(tmp_path):
    assert "1 step/s  ·" in screen(write_run(tmp_path, {0: step_records([1000.0] * 12)}))


def test_the_first_line_counts_newer_runs_that_recorded_nothing(tmp_path):
    run = open_run(write_run(tmp_path, {0: slow_input()}))
    for empty, ending in ((1, "1 newer one has recorded nothing"), (2, "2 newer ones have ")):
        line = sentences.header(diagnose(dataclasses.replace(run, others=1, empty=empty)))
        assert f"of {2 + empty} runs in {run.path.parent}: {ending}" in line


EXPECTED = """\
RUN
1 rank  ·  2 CPUs, no GPU in use

Verdict  input-bound: the step waits for its input; fixing it saves 60% of the step

Step     100 ms  mean of 12 steady steps (excluding 1 slow at the start)
         10 steps/s  ·  longest 100 ms

Where the step goes
  step record: the training thread's time, 12 steps
  input     ██████████████            60.0 ms   60%
  forward   █████                     20.0 ms   20%
  backward  ████                      15.0 ms   15%
  other     █                         5.00 ms  5.0%

Findings
  1. HIGH  input-bound  the step waits for its input
     saving  60.0 ms per step: 100 ms → 40.0 ms
     if      3 workers prepare batches beside the step and take no CPU time away from it
     seen    step now                      100 ms
             wait for input per step       60.0 ms
             share of waiting in the step  60%
             steps measured                12
             loader workers to begin with  3
             measured by                   step record
     do      Prepare batches in the background: DataLoader(num_workers=3,
             persistent_workers=True, pin_memory=True on a GPU). If that is not enough,
             make the work per sample cheaper (decode and tokenise ahead of time, store
             larger records, read from local disk).
     more    stepscope explain input-bound

  2. MEDIUM  slow-first-steps  the first step takes 900 ms, 9 times the others
     saving  not estimated: a cost at the start of the run, paid once and not in every
             step
     seen    time lost at the start        800 ms
             the same in steady steps      8.00×
             share of the observed time    38%
             slowest of them               900 ms
             steady step                   100 ms
             slow means, times the median  2.00×
     steps   0
     do      Compilation, library start-up, first allocations and starting the loader's
             workers fall here. It matters for short or often restarted runs: keep the
             compile cache (TORCHINDUCTOR_CACHE_DIR) between runs, avoid changing
             shapes, and record windows after these steps.
     more    stepscope explain slow-first-steps
"""


SHORT = """\
RUN
1 rank  ·  2 CPUs, no GPU in use

Verdict  input-bound: the step waits for its input; fixing it saves 60% of the step

Step     100 ms  mean of 12 steady steps (excluding 1 slow at the start)
         10 steps/s  ·  longest 100 ms

Where the step goes   step record: the training thread's time, 12 steps
  input     ██████████████            60.0 ms   60%
  forward   █████                     20.0 ms   20%
  backward  ████                      15.0 ms   15%
  other     █                         5.00 ms  5.0%

Findings
  1. HIGH  input-bound  the step waits for its input
     saves 60.0 ms of 100 ms  Prepare batches in the background:
     DataLoader(num_workers=3, persistent_workers=True, pin_memory=True on a GPU)
  2. MEDIUM  slow-first-steps  the first step takes 900 ms, 9 times the others
     saving: not estimated  Compilation, library start-up, first allocations and
     starting the loader's workers fall here

--full shows evidence, assumptions, advice in full
"""


def test_the_short_screen(tmp_path):
    path = write_run(tmp_path, {0: slow_input()})
    shown = screen(path, printed=print_summary).replace(str(path), "RUN")
    assert shown.rstrip() == SHORT.rstrip()


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_short_report_fits_a_screen_and_cuts_nothing_in_a_pipe(tmp_path, width):
    path = write_run(tmp_path, {rank: slow_input() for rank in range(3)})
    lines = screen(path, width, print_summary).splitlines()
    assert len(lines) < 45
    assert all(len(line) <= width for line in lines[1:])
    piped = screen(path, UNLIMITED, print_summary)
    assert "…" not in piped
    assert "persistent_workers=True, pin_memory=True on a GPU)" in piped
    # Bars grow with a screen, up to a length, and a file is read on any.
    bars = [re.findall("█+", screen(path, columns)) for columns in (UNLIMITED, 88, 120, 4000)]
    longest = [max(map(len, found)) for found in bars]
    assert longest[0] == longest[1] <= longest[2] <= longest[3] <= 60


def test_savings_are_those_of_the_rank_whose_step_is_shown(tmp_path):
    slow = step_records([900] + [100] * 12, waits_ms=[0] + [60] * 12, phases_ms={"forward": 20})
    slower = step_records([900] + [200] * 12, waits_ms=[0] + [90] * 12, phases_ms={"forward": 20})
    diagnosis = diagnose(open_run(write_run(tmp_path, {0: slow, 1: slower})))
    shown = diagnosis.shown.rank
    for group in findings_alike(diagnosis.findings, shown):
        ranks = {finding.rank for finding in group}
        assert group[0].rank == shown or shown not in ranks


def test_the_whole_screen(tmp_path):
    path = write_run(tmp_path, {0: slow_input()})
    shown = screen(path).replace(str(path), "RUN")
    assert shown.rstrip() == EXPECTED.rstrip()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_what_stands_beside_a_heading_never_wraps_to_the_margin(width):
    console = Console(width=width, file=io.StringIO())
    print_block(Heading("Where the step goes", "the training thread's time; " * 3), console)
    heading, *more = console.file.getvalue().rstrip().splitlines()
    assert heading.startswith("Where the step goes")
    assert bool(more) is (width < 120)
    assert all(line.startswith("  ") for line in more)


def test_a_folder_of_runs_says_that_the_newest_is_shown(tmp_path):
    path = write_run(tmp_path, {0: slow_input()}, "a")
    assert "the newest" not in screen(tmp_path, UNLIMITED)
    write_run(tmp_path, {0: slow_input()}, "b")
    assert f"the newest of 2 runs in {tmp_path}" in screen(tmp_path, UNLIMITED)
    assert "the newest" not in screen(path, UNLIMITED)


def test_narrow_screens_lose_no_number(tmp_path):
    path = write_run(tmp_path, {0: slow_input()})
    narrow = screen(path, width=50)
    for number in ("60.0 ms", "40.0 ms", "20.0 ms", "900 ms"):
        assert number in narrow


@pytest.mark.parametrize("width", [40, 50, 60])
def test_on_narrow_screens_labels_of_evidence_wrap_and_values_stay(width):
    label = "host time in dispatch and launches, per step, of all threads together"
    evidence = (Evidence(label, 17_000_000, "ns"), Evidence("of the step", 0.25, "share"))
    finding = Finding(
        id="launch-bound", title="a title", severity=Severity.LOW, rank=0, steps=(),
        evidence=evidence, saving_ns=None, saving_reason="none", predicted_step_ns=None,
        assumption="", advice="",
    )  # fmt: skip
    stream = io.StringIO()
    console = Console(file=stream, width=width, highlight=False, color_system=None)
    print_blocks([Findings((ShownFinding(finding),))], console)
    shown = stream.getvalue()
    assert "17.0 ms" in shown
    assert "25%" in shown
    assert "…" not in shown


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ((), "rank 3"),
        ((5,), "rank 3; less on 1 other: rank 5"),
        ((*range(3), *range(4, 256)), "rank 3; less on 255 others: ranks 0 to 2, 4 to 255"),
        (
            range(4, 40, 2),
            "rank 3; less on 18 others: ranks 4, 6, 8, 10, 12, 14, 16, 18 and 10 more",
        ),
    ],
)
def test_ranks_with_a_finding_are_told_as_ranges(others, words):
    first = Finding(
        id="launch-bound", title="a title", severity=Severity.LOW, rank=3, steps=(),
        evidence=(), saving_ns=9, saving_reason="", predicted_step_ns=90, assumption="", advice="",
    )  # fmt: skip
    rest = [dataclasses.replace(first, rank=rank, saving_ns=5) for rank in others]
    assert ranks_with([first, *rest]) == words


def test_what_was_done_besides_the_steps_is_told(tmp_path):
    records = step_records([100] * 9)
    for step, kind in ((3, "evaluation"), (6, "evaluation"), (6, "checkpoint")):
        records.append(dataclasses.replace(records[step], dur_ns=750 * MS, kind=kind))
    shown = screen(write_run(tmp_path, {0: records}))
    assert "outside the steps: evaluation 1.50 s (2×), checkpoint 750 ms" in shown
    assert "mean of 9 steady steps" in shown


def test_a_killed_rank_and_a_window_without_files_are_told_in_words(tmp_path):
    path = write_run(tmp_path, {0: step_records([100] * 9)})
    file = RunLayout(path).rank(0).manifest
    window = WindowRecord(0, "saving", first_step=3, last_step=4, planned_steps=2)
    manifest = dataclasses.replace(read_rank(file), state="running", ended="", windows=(window,))
    write_record(file, manifest)
    told = " ".join(screen(path).split())
    assert "running: no end was recorded: the process is still running, was killed, or" in told
    assert "window 0 is saving: its files were not finished" in told


def test_a_window_that_failed_could_not_be_saved(tmp_path):
    path = write_run(tmp_path, {0: step_records([100] * 9)})
    file = RunLayout(path).rank(0).manifest
    window = WindowRecord(
        0, "failed", first_step=3, last_step=4, planned_steps=2, reason="disk full"
    )
    write_record(file, dataclasses.replace(read_rank(file), windows=(window,)))
    assert "window 0 could not be saved: disk full" in " ".join(screen(path).split())


def test_a_rank_that_should_record_no_window_is_no_note(tmp_path):
    """As by default of the dialects that record on one rank of each node."""
    path = write_run(tmp_path, {rank: step_records([100] * 9) for rank in (0, 1)})
    ends = ("no window was recorded: why", f"{RECORDS_NONE} (STEPSCOPE_RANKS=node-first)")
    for rank, end in enumerate(ends):
        file = RunLayout(path).rank(rank).manifest
        write_record(
            file, dataclasses.replace(read_rank(file), ended=f"finished after 9 steps; {end}")
        )
    shown = screen(path)
    assert "rank 0: finished after 9 steps; no window was recorded" in shown
    assert RECORDS_NONE not in shown


def test_the_memory_log_is_named_where_there_is_one(tmp_path):
    path = write_run(tmp_path, {rank: step_records([100] * 9) for rank in (0, 1)})
    layout = RunLayout(path)
    job = read_record(layout.run_file, JobRecord)
    write_record(layout.run_file, dataclasses.replace(job, options={"memory_log": True}))
    assert "memory.log" not in screen(path)
    layout.rank(0).memory_log.write_text("[Step 5] GPU 0: Allocated: 1.00GB\n")
    shown = "".join(screen(path).split())  # the path may be broken anywhere
    assert "thememoryeveryfewsteps:" in shown
    assert "/run/rank00000/memory.log,andoneforeachotherrank" in shown


def test_several_ranks_are_listed_the_slowest_first(tmp_path):
    path = write_run(tmp_path, {0: step_records([100] * 9), 1: step_records([130] * 9)})
    shown = screen(path)
    assert "2 ranks" in shown
    ranks = shown[shown.index("Ranks") :]
    assert ranks.index("130 ms") < ranks.index("100 ms")


def test_json_carries_integers_and_scope_and_orders_findings_by_saving(tmp_path):
    path = write_run(tmp_path, {0: slow_input()})
    document = json.loads(json.dumps(diagnosis_to_dict(diagnose(open_run(path))), default=str))
    first, second = document["findings"]
    assert (first["id"], first["saving_ns"], first["saving_reason"]) == (
        "input-bound",
        60 * MS,
        "",
    )
    assert second["saving_ns"] is None
    assert second["saving_reason"]
    steps = document["ranks"][0]["step_record"]
    assert steps["scope"]["steps"] == list(range(1, 13))
    assert steps["scope"]["excluded"]["first"] == 1
    parts = steps["partition"]["parts"]
    assert sum(part["total_ns"] for part in parts) == steps["partition"]["total_ns"]
    assert all(isinstance(part["total_ns"], int) for part in parts)


def test_units_are_what_a_person_would_choose():
    assert [units.duration(ns) for ns in (0, 999, 1_000, 999_600, 92_120_000, 1.534e9, 150e9)] == [
        "0 ns", "999 ns", "1.00 µs", "1.00 ms", "92.1 ms", "1.53 s", "2.50 min",
    ]  # fmt: skip
    assert [units.size(n) for n in (0, 900, 1024, 1.5 * 2**30)] == [
        "0 B", "900 B", "1.00 KiB", "1.50 GiB",
    ]  # fmt: skip
    assert [units.percent(x) for x in (0, 0.0001, 0.05, 0.634, 0.996, 0.9999, 1)] == [
        "0%", "<0.1%", "5.0%", "63%", "99.6%", ">99.9%", "100%",
    ]  # fmt: skip


@pytest.mark.parametrize("width", [30, 40, 60, 80, 200])
@pytest.mark.parametrize("printed", [print_diagnosis, print_summary])
def test_the_numbers_of_the_parts_are_whole_in_every_width(tmp_path, width, printed):
    path = write_run(tmp_path, {0: slow_input()})
    lines = screen(path, width, printed).splitlines()
    for part, per_step, share in (
        ("input", "60.0 ms", "60%"), ("backward", "15.0 ms", "15%"), ("other", "5.00 ms", "5.0%"),
    ):  # fmt: skip
        (line,) = (one for one in lines if one.startswith(f"  {part} ") and share in one)
        assert line.split()[-3:] == [*per_step.split(), share]
        assert len(line) <= width


def test_of_ranks_that_wait_equally_little_the_one_that_others_wait_for_comes_first(monkeypatch):
    waits = {0: (700, 1), 1: (0, 2), 2: (300, 0), 3: (0, 21)}
    table = pl.DataFrame(
        [(rank, 10_000_000, wait_ns, last, 24) for rank, (wait_ns, last) in waits.items()],
        schema=["rank", "step_ns", "wait_ns", "last", "collectives"],
        orient="row",
    )
    every = [pl.lit(None, kind).alias(name) for name, kind in RANKS.items()]
    table = table.with_columns(*(one for one in every if one.meta.output_name() not in table))
    monkeypatch.setattr(sentences, "ranks_table", lambda diagnosis: table)
    assert [row[0] for row in sentences.rank_rows(None)[1]] == ["3", "1", "2", "0"]


def test_a_mean_over_two_levels_of_steps_names_both(tmp_path):
    path = write_run(tmp_path, {0: step_records([100] * 40 + [160] * 60)})
    line = next(one for one in screen(path, width=200).splitlines() if one.startswith("Step "))
    assert "136 ms" in line
    assert line.endswith("; the median is 100 ms before step 40, and 160 ms from then on")
