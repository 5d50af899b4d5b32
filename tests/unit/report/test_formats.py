"""The report as tables and Markdown: of some steps or devices, other thresholds, over ranks."""

from __future__ import annotations

import csv
import functools
import io
import json
import re

import click
import pytest
from click.testing import CliRunner
from tests.support.gpu_trace import GpuTrace, ms, us
from tests.support.page_data import blocks_of, data_of
from tests.support.planted import SCENARIOS

from stepscope.advice.diagnosis import diagnose
from stepscope.advice.thresholds import Thresholds
from stepscope.commands.report import command
from stepscope.errors import UsageError
from stepscope.opening.reader import open_run
from stepscope.report.cells import column_shown
from stepscope.report.diagnosis.tables import PARTS, RANKS, diagnosis_tables
from stepscope.report.findings import FINDINGS

pytestmark = pytest.mark.usefixtures("cache_of_the_module")


@pytest.fixture(scope="module")
def starved(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "starved.pt.trace.json"
    path.write_bytes(next(s for s in SCENARIOS if s.name == "starved GPU").build().json())
    return str(path)


@pytest.fixture(scope="module")
def late_rank(tmp_path_factory):
    """Three ranks, of which number 1 comes 20 ms after the others to the second half of them."""
    folder = tmp_path_factory.mktemp("late")
    for rank in range(3):
        t = GpuTrace(rank=rank, world_size=3, device=rank, memory_bytes=0)
        for _ in range(4):
            with t.step():
                t.op("aten::mm").launch("sm90_xmma_gemm_bf16bf16", ms(1))
                for late in (0, 20):
                    arrives = late if rank == 1 else 0
                    t.python(ms(2 + arrives))
                    done = t.collective("all_reduce", 1 << 20, ms(1 + late - arrives))
                    t.wait_collective(done).sync()
        (folder / f"rank{rank}.pt.trace.json").write_bytes(t.json())
    return str(folder)


@functools.cache
def report(*words):
    result = CliRunner().invoke(command, [str(word) for word in words], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.stdout


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_has_every_finding_with_whole_nanoseconds(starved):
    document = json.loads(report(starved, "--format", "json"))
    table = rows(report(starved, "--format", "csv"))
    assert list(table[0]) == list(FINDINGS)
    assert len(table) == len(document["findings"]) >= 1
    for row, finding in zip(table, document["findings"], strict=True):
        for name in ("id", "severity", "title", "advice", "assumption", "saving_reason", "page"):
            assert row[name] == finding[name]
        for name in ("saving_ns", "predicted_step_ns"):
            assert row[name] == ("" if finding[name] is None else str(finding[name]))
        assert int(row["rank"]) == finding["rank"]
        assert json.loads(row["steps"]) == finding["steps"]
        assert all(item["label"] in row["evidence"] for item in finding["evidence"])


def test_csv_of_parts_adds_up_to_the_steps(starved):
    document = json.loads(report(starved, "--format", "json"))["ranks"][0]["trace"]["partition"]
    table = rows(report(starved, "--format", "csv", "--table", "parts"))
    assert list(table[0]) == list(PARTS)
    assert [(r["part"], int(r["total_ns"])) for r in table] == [
        (part["name"], part["total_ns"]) for part in document["parts"]
    ]
    assert sum(int(row["total_ns"]) for row in table) == document["total_ns"]
    assert {row["steps"] for row in table} == {str(document["steps"])}


def test_csv_of_ranks_and_notes(late_rank):
    table = rows(report(late_rank, "--format", "csv", "--table", "ranks"))
    assert list(table[0]) == list(RANKS)
    assert [row["rank"] for row in table] == ["0", "1", "2"]
    waits = [int(row["wait_ns"]) for row in table]
    assert waits == pytest.approx([ms(20), 0, ms(20)], rel=1e-4)
    assert table[1]["last"] == "4"
    for row in table:
        assert int(row["own_ns"]) == int(row["step_ns"]) - int(row["wait_ns"])
        assert row["steady_steps"] == row["input_wait_ns"] == ""
    assert report(late_rank, "--format", "csv", "--table", "notes") == "rank,note\n"


def test_the_page_has_the_rank_that_the_others_wait_for_first(late_rank, tmp_path):
    page = tmp_path / "page.html"
    report(late_rank, "-o", str(page))
    tables = blocks_of(data_of(page.read_text("utf-8")), "table")
    (of_ranks,) = (
        one for one in tables if "own_ns" in {column["name"] for column in one["columns"]}
    )
    assert [row[0] for row in of_ranks["rows"]] == [1, 0, 2]


def test_the_table_belongs_to_csv_and_must_exist(starved):
    with pytest.raises(click.UsageError, match="--table needs --format csv"):
        report(starved, "--table", "parts")
    with pytest.raises(UsageError, match="it has findings, parts, ladder, ranks, notes"):
        report(starved, "--format", "csv", "--table", "kernels")


def test_markdown_says_what_the_screen_says(starved, late_rank):
    for path in (starved, late_rank):
        text = report(path, "--format", "md")
        diagnosis = diagnose(open_run(path))
        assert text.startswith("# ")
        assert f"**Verdict**: {diagnosis.verdict.split(':')[0]}" in text
        assert text.count("\n### ") == len({finding.id for finding in diagnosis.findings})
        assert "## Where the step goes" in text
        assert "\n| compute | " in text
        assert "Scope: steps 0 to " in text
    assert (
        "rank 1 arrives last in 4 of 8 collectives, and 100% of all waiting is for it; "
        "waiting costs the others 20.0 ms" in text
    )
    assert "| rank | step | waiting costs | without it | arrives last |" in text
    assert re.search(r"\n\| 1 \| (\S+ ms) \| 0 ns \| \1 \| 4 of 8 \|\n", text)


def test_columns_of_nothing_have_dashes():
    assert column_shown("idle_ns", [0, None, 0]) == ["–", "–", "–"]
    assert column_shown("idle_ns", [0, 1500]) == ["–", "1.50 µs"]
    assert column_shown("idle_ns", [0, None, 1500]) == ["0 ns", "–", "1.50 µs"]
    assert column_shown("count", [0, 0]) == ["0", "0"]
    assert column_shown("start_ns", [0, 0]) == ["+0 ns", "+0 ns"]


def test_steps_are_those_asked_for(starved):
    whole = json.loads(report(starved, "--format", "json"))["ranks"][0]["trace"]
    some = json.loads(report(starved, "--format", "json", "--steps", "2-4"))["ranks"][0]["trace"]
    assert some["scope"]["steps"] == [2, 3, 4]
    assert some["scope"]["excluded"]["GPU events of other steps or of none"] > 0
    assert some["partition"]["steps"] == 3
    assert [row["step"] for row in some["steps"]] == [2, 3, 4]
    # What a step takes does not depend on what else was asked for.
    assert some["steps"] == [row for row in whole["steps"] if row["step"] in (2, 3, 4)]
    with pytest.raises(UsageError, match="no step 99"):
        report(starved, "--steps", "99")
    with pytest.raises(UsageError, match="follow one another"):
        report(starved, "--steps", "1,3")


def test_devices_and_linked_events_are_those_asked_for(tmp_path):
    t = GpuTrace()
    for _ in range(2):
        with t.step():
            t.launch("sgemm", ms(4), linked=False)
            t.op("aten::mm").launch("sgemm", ms(3))
            t.op("aten::mm").launch("sgemm", ms(2), device=1)
            t.sync()
    path = tmp_path / "trace.json"
    path.write_bytes(t.json())

    def compute(*words):
        document = json.loads(report(path, "--format", "json", *words))["ranks"][0]["trace"]
        parts = {part["name"]: part["total_ns"] for part in document["partition"]["parts"]}
        return document["scope"]["devices"], document["scope"]["events"], parts["compute"]

    # Of two devices the mean. The first event, without a launch, is a backlog of no step.
    assert compute() == ([0, 1], "all", (ms(4 + 2 * 3) + ms(4)) // 2)
    assert compute("--device", "1") == ([1], "all", ms(4))
    assert compute("--device", "0", "--scope", "linked") == ([0], "linked", ms(6))
    with pytest.raises(UsageError, match="no GPU work on device 7: it has 0, 1"):
        report(path, "--device", "7")


def test_thresholds_are_the_users(starved):
    ids = [finding["id"] for finding in json.loads(report(starved, "--format", "json"))["findings"]]
    assert ids[0] == "launch-bound"
    limits = ("launch_bound_idle=1.0", "launch_bound_host=2.0", "small_kernel_count=100000")
    words = [word for limit in limits for word in ("--threshold", limit)]
    quiet = json.loads(report(starved, "--format", "json", *words))["findings"]
    assert "launch-bound" not in {finding["id"] for finding in quiet}
    for wrong, said in (
        ("launch_bound_idel=1", "did you mean 'launch_bound_idle'"),
        ("saving_low", "saving_low=0.05"),
        ("saving_low=-1", "a number, 0 or more"),
        ("saving_low=nan", "a number, 0 or more"),
        ("optimizer_kernels=1.5", "a whole number"),
    ):
        with pytest.raises(UsageError, match=said):
            report(starved, "--threshold", wrong)
    changed = Thresholds().changed({"optimizer_kernels": 3, "saving_low": 0.5})
    assert (changed.optimizer_kernels, changed.saving_low) == (3, 0.5)


def test_who_is_late_shows_where_all_ranks_are_at_hand(late_rank):
    diagnosis = diagnose(open_run(late_rank))
    assert diagnosis.between is not None
    assert diagnosis.between.straggler == 1
    assert diagnosis.between.others_wait_ns == pytest.approx(ms(20), rel=1e-4)
    waiting = {f.rank: f for f in diagnosis.findings if f.id == "rank-waiting"}
    assert set(waiting) == {0, 2}
    for finding in waiting.values():
        assert "rank 1" in finding.title
        seen = {item.label: item.value for item in finding.evidence}
        assert seen["waiting per step"] == pytest.approx(ms(20), rel=1e-4)
    text = report(late_rank)
    assert "rank 1 arrives last in 4 of 8 collectives" in text
    document = json.loads(report(late_rank, "--format", "json"))["between_ranks"]
    assert document["straggler"] == 1
    waits = [row["wait_ns"] for row in document["ranks"]]
    assert waits == pytest.approx([ms(20), 0, ms(20)], rel=1e-4)
    assert document["scope"]["counted"] == 3 * 4 * 3


def test_one_rank_alone_is_judged_by_guess(late_rank):
    diagnosis = diagnose(open_run(f"{late_rank}/rank0.pt.trace.json"))
    assert diagnosis.between is None
    (finding,) = (f for f in diagnosis.findings if f.id == "rank-waiting")
    assert "rank 1" not in finding.title


def test_an_outlier_that_waited_is_said_to_have_waited(tmp_path):
    for rank in range(2):
        t = GpuTrace(rank=rank, world_size=2, device=rank)
        for step in range(8):
            with t.step():
                t.op("aten::mm").launch("sm90_xmma_gemm_bf16bf16", ms(1))
                late = 40 if step == 5 else 0
                t.python(ms(2 + (late if rank == 1 else 0)))
                done = t.collective("all_reduce", 1 << 20, ms(1 + (late if rank == 0 else 0)))
                t.wait_collective(done).sync()
        (tmp_path / f"rank{rank}.pt.trace.json").write_bytes(t.json())
    findings = diagnose(open_run(str(tmp_path))).findings
    (finding,) = (f for f in findings if f.id == "abnormal-collective")
    assert finding.rank == 0
    assert {e.label: e.value for e in finding.evidence}["seen at the time"] == (
        "rank 1 joined it 40.0 ms later"
    )


def test_a_baseline_tells_that_all_are_slow(tmp_path):
    def job(length):
        t = GpuTrace(world_size=2)
        for _ in range(4):
            with t.step():
                t.op("aten::mm").launch("sm90_xmma_gemm_bf16bf16", us(500))
                t.wait_collective(t.collective("all_reduce", 1 << 20, length))
                t.sync()
        return t

    slow, known = tmp_path / "slow.json", tmp_path / "known.json"
    slow.write_bytes(job(ms(2)).json())  # 0.5 GB/s: a link may be as slow
    known.write_bytes(job(us(100)).json())

    def ids(*words):
        return [f["id"] for f in json.loads(report(slow, "--format", "json", *words))["findings"]]

    assert "abnormal-collective" not in ids()
    assert "abnormal-collective" in ids("--baseline", known)


def test_tables_of_a_run_without_a_trace(tmp_path):
    from tests.support.step_records import step_records, write_run

    run = write_run(tmp_path, {0: step_records([50] * 20, phases_ms={"forward": 30})})
    tables = diagnosis_tables(diagnose(open_run(run)))
    assert tables["ranks"]["steady_steps"].to_list() == [20]
    assert tables["parts"]["total_ns"].sum() == 20 * ms(50)


def test_what_sets_a_rank_apart_is_told(tmp_path):
    from tests.support.step_records import step_records, write_run

    ranks = {
        rank: step_records([60] * 20, phases_ms={"forward": 30 if rank != 2 else 50})
        for rank in range(4)
    }
    run = write_run(tmp_path, ranks)
    (row,) = diagnose(open_run(run)).odd_parts.to_dicts()
    assert row == {"rank": 2, "part": "forward", "per_step_ns": ms(50), "others_ns": ms(30)}
    said = "rank 2: 'forward' takes 50.0 ms per step, 30.0 ms on the other ranks"
    assert said in report(run)
    assert f"- {said}" in report(run, "--format", "md")
    assert json.loads(report(run, "--format", "json"))["odd_parts"] == [row]
    assert said not in report(run, "--threshold", "odd_rank_factor=2")


def test_a_late_rank_is_set_apart_and_its_victims_are_not(late_rank):
    odd = diagnose(open_run(late_rank)).odd_parts
    assert odd["rank"].unique().to_list() == [1]
    assert odd["part"].to_list() == ["idle: host, cause not recorded"]
    assert odd["per_step_ns"][0] - odd["others_ns"][0] == pytest.approx(ms(20), rel=0.01)


def test_names_from_a_file_steer_no_terminal_and_break_no_table(tmp_path):
    from stepscope.commands.compare import command as compare

    evil = "\x1b]0;title\x07\x1b[31m<script>|`x`"
    files = []
    for length in (us(3), us(6)):
        t = GpuTrace()
        for _ in range(4):
            with t.step():
                t.op("aten::mm").launch(f"gemm{evil}", us(900))
                with t.frame(f"train{evil}.py(1): x"), t.op(f"aten::item{evil}"):
                    t.copy("DtoH", 4, us(5), pinned=False)
                t.python(ms(3))
                for _ in range(200):
                    t.op(f"aten::add{evil}").launch(f"small{evil}", length)
                t.sync()
        files.append(str(tmp_path / f"{length}.json"))
        (tmp_path / f"{length}.json").write_bytes(t.json())
    assert "small" in report(files[0])
    for form in ("table", "md", "csv", "json"):
        result = CliRunner().invoke(compare, [*files, "--format", form])
        for text in (report(files[0], "--format", form), result.stdout):
            assert "\x1b" not in text or form == "csv"
            if form == "md":
                assert "<script" not in text.replace("\\<script", "")
