"""Reports as pages in one file: what adds up, what stays inert, what fits."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import html
import json
import re

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tests.support.gpu_trace import GpuTrace, ms, us
from tests.support.page_data import blocks_of, data_of
from tests.support.planted import SCENARIOS
from tests.support.project import ROOT
from tests.support.rank_jobs import rank_of_job
from tests.support.rendered import diagnosis_to_html
from tests.support.step_records import step_records, write_run

from stepscope.advice.diagnosis import diagnose
from stepscope.advice.job.reading import details_of
from stepscope.analysis.record.step_strip import MOST_BARS, OUTLIER, StepStrip
from stepscope.commands.main import cli
from stepscope.opening.reader import open_run
from stepscope.report.render.html import MOST_BYTES, ROWS, in_one_file
from stepscope.report.units import duration

STATIC = ROOT / "src" / "stepscope" / "report" / "page" / "static"
SEVERAL = "communication waited for"
"""A scenario with two findings that save something."""
HOSTILE = "</script><script>document.title='owned'</script><!--"


def trace_file(folder, trace, name="trace.json"):
    path = folder / name
    path.write_text(json.dumps(trace.document()), encoding="utf-8")
    return path


def planted(folder, name="starved GPU", file="trace.json"):
    scenario = next(one for one in SCENARIOS if one.name == name)
    return trace_file(folder, scenario.build(), file)


def section_of(data, identity):
    return next(one for one in data["sections"] if one["id"] == identity)


def run(*arguments):
    result = CliRunner().invoke(cli, [str(one) for one in arguments])
    assert result.exit_code == 0, result.output
    return result


@pytest.mark.sampled(4)
@pytest.mark.parametrize("scenario", SCENARIOS[::6], ids=lambda one: one.name)
def test_the_parts_add_up_and_every_finding_is_there(tmp_path, scenario):
    diagnosis = diagnose(open_run(trace_file(tmp_path, scenario.build())))
    detailed = dataclasses.replace(diagnosis, details=details_of(diagnosis.shown))
    data = data_of(diagnosis_to_html(detailed))
    for bar in blocks_of(data, "bar"):
        assert sum(part["total_ns"] for part in bar["parts"]) == bar["total_ns"]
        assert bar["total_ns"] == diagnosis.shown.partition.total_ns
    shown = [one["id"] for block in blocks_of(data, "findings") for one in block["findings"]]
    assert set(shown) == {one.id for one in diagnosis.findings}
    words = section_of(data, "verdict")["blocks"][0]["text"].lower()
    assert diagnosis.verdict.lower().endswith(words)


def test_a_share_of_another_rank_s_step_names_the_rank(tmp_path):
    """Otherwise a larger share stands below a smaller one, and nothing says why."""
    for rank in range(3):
        trace = rank_of_job(rank, (0.0, 3.0, 1.0), steps=3)
        trace_file(tmp_path, trace, f"rank{rank}.json")
    diagnosis = diagnose(open_run(tmp_path))
    (block,) = blocks_of(data_of(diagnosis_to_html(diagnosis)), "findings")
    shown = f"rank {diagnosis.shown.rank}"
    for one in block["findings"]:
        rank = one["where"].partition(";")[0]
        assert one["whose"] == ("" if rank == shown else f" of {rank}'s step")
    assert {one["whose"] for one in block["findings"]} == {"", " of rank 0's step"}


def test_tables_hold_the_numbers_of_the_questions(tmp_path):
    path = planted(tmp_path)
    file = tmp_path / "report.html"
    run("report", path, "-o", file)
    data = data_of(file.read_text("utf-8"))
    by_name = next(
        one for one in section_of(data, "kernels")["blocks"] if one["title"] == "By name"
    )
    names = [column["name"] for column in by_name["columns"]]
    steps = next(
        one
        for one in section_of(data, "kernels")["blocks"]
        if "Scope: steps" in one.get("text", "")
    )
    assert "0 to 7" in steps["text"]
    asked = run("show", "kernels", path, "--steps", "0-7", "--format", "json").stdout
    expected = json.loads(asked)["kernels"]
    at = [names.index(name) for name in ("name", "count", "total_ns")]
    assert [[row[one] for one in at] for row in by_name["rows"]] == [
        [row["name"], row["count"], row["total_ns"]] for row in expected
    ]


def test_the_order_is_verdict_step_findings_tables_what_was_left_out(tmp_path):
    file = tmp_path / "report.html"
    run("report", planted(tmp_path), "-o", file)
    order = [one["id"] for one in data_of(file.read_text("utf-8"))["sections"]]
    wanted = [
        "verdict",
        "step",
        "steps",
        "findings",
        "kernels",
        "operators",
        "environment",
        "left-out",
    ]
    assert [one for one in order if one in wanted] == wanted


def paragraphs(data, identity):
    return [one["text"] for one in section_of(data, identity)["blocks"] if one["is"] == "text"]


def page_of(folder, path):
    file = folder / "report.html"
    run("report", path, "-o", file)
    return data_of(file.read_text("utf-8"))


def test_what_all_findings_save_together_stands_below_them(tmp_path):
    diagnosis = diagnose(open_run(planted(tmp_path, SEVERAL)))
    assert len([one for one in diagnosis.findings if one.saving_ns]) > 1
    told = " ".join(paragraphs(page_of(tmp_path, planted(tmp_path, SEVERAL)), "findings"))
    assert "together save" in told
    assert f"{duration(diagnosis.shown.together_ns)} per step" in told


def test_a_file_without_steps_is_called_a_file_and_no_step(tmp_path):
    trace = GpuTrace()
    for _ in range(20):
        trace.python(ms(2))
        trace.op("aten::mm").launch("sgemm", us(300))
    data = page_of(tmp_path, trace_file(tmp_path, trace))
    verdict = section_of(data, "verdict")["blocks"][0]["text"]
    assert verdict.endswith("% of the whole file")
    (numbers,) = [one for one in section_of(data, "step")["blocks"] if one["is"] == "numbers"]
    assert [label for label, _ in numbers["numbers"]] == ["whole file"]


@pytest.mark.parametrize("waits", [False, True])
def test_a_typical_step_tells_in_which_steps_the_host_is_meanwhile(tmp_path, waits):
    """A host that waits for the GPU begins its next step while the GPU ends this one."""
    trace = GpuTrace()
    for _ in range(6):
        with trace.step():
            if waits:
                trace.sync()
            trace.op("aten::mm").launch("sgemm", ms(30))
    step = section_of(data := page_of(tmp_path, trace_file(tmp_path, trace)), "typical-step")
    lanes = step["blocks"][0]["lanes"]
    seen = {name for lane in lanes for _, _, name, _ in lane["slices"] if "ProfilerStep#" in name}
    (told,) = paragraphs(data, "typical-step")
    assert seen == ({"ProfilerStep#2"} if waits else set())
    assert ("the host is in step 2: it runs ahead" in told) == waits


def test_one_recorded_step_is_not_compared_with_a_median(tmp_path):
    trace = GpuTrace()
    with trace.step():
        trace.op("aten::mm").launch("sgemm", ms(3))
        trace.sync()
    (told,) = paragraphs(page_of(tmp_path, trace_file(tmp_path, trace)), "typical-step")
    assert "the only steady step" in told
    assert "median" not in told


def test_one_reason_for_several_sections_is_told_once(tmp_path):
    run_folder = write_run(tmp_path, {0: step_records([100] * 30)})
    data = page_of(tmp_path, planted(tmp_path, "healthy"))
    (listed,) = [one["items"] for one in section_of(data, "left-out")["blocks"]]
    reasons = [one.partition(": ")[2] for one in listed if ": " in one]
    assert len(reasons) == len(set(reasons)) > 0
    assert "left-out" not in [one["id"] for one in page_of(tmp_path, run_folder)["sections"]]


def test_the_kernels_time_is_reconciled_with_compute_where_they_differ(tmp_path):
    trace = GpuTrace()
    for _ in range(4):
        with trace.step():
            trace.op("aten::mm").launch("sgemm", ms(8))
            trace.fill(1 << 20, us(700))
            trace.sync()
    (told,) = paragraphs(page_of(tmp_path, trace_file(tmp_path, trace)), "compute")
    assert told == "8.00 ms of kernels per step; with memory fills it is the 8.70 ms of compute."


@pytest.mark.parametrize(
    ("name", "title"),
    [("trace.json", "job/trace.json"), ("rank3.pt.trace.json", "rank3.pt.trace.json")],
)
def test_the_title_names_the_folder_where_the_file_s_name_says_nothing(tmp_path, name, title):
    (tmp_path / "job").mkdir()
    assert page_of(tmp_path, planted(tmp_path / "job", "healthy", name))["title"] == title


def test_the_waterfall_adds_up_to_the_difference_of_the_mean_step(tmp_path):
    slow, fast = planted(tmp_path), planted(tmp_path, "healthy on AMD", "other.json")
    file = tmp_path / "compare.html"
    run("compare", slow, fast, "-o", file)
    data = data_of(file.read_text("utf-8"))
    (drawn,) = blocks_of(data, "bars")
    before, *between, after = drawn["rows"]
    document_ = json.loads(run("compare", slow, fast, "--format", "json").stdout)
    for side, total in (("a", before["to"]), ("b", after["to"])):
        mean = sum(document_[side]["step_ns"]) / len(document_[side]["step_ns"])
        assert abs(total - mean) <= len(drawn["rows"])  # each part is rounded to the nanosecond
    at = before["to"]
    for one in between:
        assert one["from"] == at
        at = one["to"]
    assert at == after["to"]
    changed = after["to"] - before["to"]
    assert changed == sum(row["delta_ns"] for row in document_["changes"] if row["table"] == "part")
    assert changed != 0


def test_hostile_names_end_no_script_and_keep_no_control_characters(tmp_path):
    t = GpuTrace()
    for _ in range(3):
        with t.step():
            t.op(HOSTILE).launch(f"kernel {HOSTILE} \u202e\x1b[31m", us(400))
            t.op("aten::mm").launch("x" * 100_000, us(300))
    path = trace_file(tmp_path, t, "<img src=x onerror=alert(1)>.json")
    file = tmp_path / "report.html"
    run("report", path, "-o", file)
    text = file.read_text("utf-8")
    assert text.count("<script") == 2
    assert text.count("</script") == 2
    assert text.count("<!--") == 0
    assert "<img" not in text
    data = data_of(text)
    rows = [row for table in blocks_of(data, "table") for row in table["rows"]]
    names = [cell for row in rows for cell in row if isinstance(cell, str)]
    assert any(HOSTILE in name for name in names)
    assert all(name.isprintable() for name in names)
    assert max(map(len, names)) < 2000
    lanes = blocks_of(data, "mini_timeline")[0]["lanes"]
    slices = [one[2] for lane in lanes for one in lane["slices"]]
    assert any(HOSTILE in name for name in slices)
    assert all(name.isprintable() and len(name) <= 200 for name in slices)
    title = re.search(r"<title>(.*?)</title>", text)[1]
    assert html.unescape(title).startswith("<img src=x")


def test_the_policy_allows_this_style_and_this_script_and_no_connection(tmp_path):
    file = tmp_path / "report.html"
    run("report", planted(tmp_path), "-o", file)
    text = file.read_text("utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    assert "unsafe" not in policy
    for name, pattern in (
        ("script", r"<script>(.*?)</script>"),
        ("style", r"<style>(.*?)</style>"),
    ):
        inside = re.search(pattern, text, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert rules[f"{name}-src"] == f"'sha256-{digest}'"
    assert not re.search(r'(?:src|href)="(?!data:)', text)
    assert not re.search(r'url\((?!"#|"data:)|@import', text)


def test_a_page_of_long_tables_stays_below_its_limit():
    rows = [[f"{number} {'k' * 900}", number] for number in range(100_000)]
    columns = [{"name": n, "label": n, "number": n == "count"} for n in ("name", "count")]

    def content(most):
        tables = [
            {"is": "table", "title": "", "note": "", "shown": 12, "columns": columns,
             "rows": rows[:most], "total": len(rows)}
            for _ in range(20)
        ]  # fmt: skip
        return {"title": "t", "sections": [{"id": "a", "title": "A", "blocks": tables}]}

    text = in_one_file(content)
    assert len(text.encode()) <= MOST_BYTES
    kept = [len(one["rows"]) for one in blocks_of(data_of(text), "table")]
    assert kept == [ROWS[1]] * 20
    assert {one["total"] for one in blocks_of(data_of(text), "table")} == {100_000}


def test_the_strip_comes_from_the_step_record_and_marks_what_is_special(tmp_path):
    compiling = [0] * 10 + [300] + [0] * 11
    records = step_records([500, 480] + [100] * 8 + [400] + [100] * 11, compile_ms=compiling)
    path = write_run(tmp_path, {0: records})
    file = tmp_path / "report.html"
    run("report", path, "--output", file)
    data = data_of(file.read_text("utf-8"))
    (strip,) = blocks_of(data, "strips")[0]["strips"]
    assert strip["first"] == list(range(22))
    assert strip["longest_ns"][:3] == [500_000_000, 480_000_000, 100_000_000]
    assert strip["kinds"][:3] == ["slow at the start", "slow at the start", ""]
    assert strip["kinds"][9:12] == ["", "compiling", ""]
    assert strip["overall_ns"] == 100_000_000
    assert sum(strip["bins"]) == 22
    for at in range(22):
        assert sum(ns[at] for _, ns in strip["parts"]) == strip["mean_ns"][at]


def test_lines_beside_the_strip_are_rates_and_the_loss_where_it_was_logged(tmp_path):
    records = [
        dataclasses.replace(one, samples=8, loss=4.0 - at / 10 if at % 5 == 0 else None)
        for at, one in enumerate(step_records([100] * 22))
    ]
    after = {"step": 22, "start_ns": records[-1].start_ns + records[-1].dur_ns, "dur_ns": 1000}
    records.append(dataclasses.replace(records[-1], **after, is_partial=True, loss=1.5))
    file = tmp_path / "report.html"
    run("report", write_run(tmp_path, {0: records}), "--output", file)
    (strip,) = blocks_of(data_of(file.read_text("utf-8")), "strips")[0]["strips"]
    (samples, per_second), (loss, values) = strip["lines"]
    assert (samples, set(per_second)) == ("samples/s", {80.0})
    assert (loss, values[:6]) == ("loss", [4.0, None, None, None, None, 3.5])
    assert values[-2:] == [2.0, 1.5]  # logged after the last step
    assert "partial" not in json.dumps(data_of(file.read_text("utf-8"))["sections"])
    grouped = StepStrip.of("run", range(720), [1] * 720, losses=[2.0, None] + [None] * 718)
    assert grouped.lines[0][1][:2] == (2.0, None)


@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=4 * MOST_BARS))
def test_bars_lose_no_step_and_keep_the_longest(ns):
    def halves(span):
        return {
            "a": sum(one // 2 for one in ns[span]),
            "b": sum(one - one // 2 for one in ns[span]),
        }

    strip = StepStrip.of("run", range(len(ns)), ns, halves)
    assert len(strip.first) <= MOST_BARS
    assert strip.first[0] == 0
    assert strip.last[-1] == len(ns) - 1
    assert all(b == a + 1 for a, b in zip(strip.last, strip.first[1:], strict=False))
    assert max(strip.longest_ns) == max(ns)
    assert sum(strip.bins) == len(ns)
    for at, (first, last) in enumerate(zip(strip.first, strip.last, strict=True)):
        some = ns[first : last + 1]
        assert strip.longest_ns[at] == max(some) == ns[strip.slowest[at]]
        assert min(some) <= strip.mean_ns[at] <= max(some)
        assert abs(sum(each[at] for _, each in strip.parts) - strip.mean_ns[at]) <= 1
        is_special = any(one > 2 * strip.overall_ns for one in some)
        assert (strip.kinds[at] == OUTLIER) == is_special


def test_of_many_phases_the_largest_are_parts_and_the_rest_is_one():
    many = {f"phase {number}": 100 - number for number in range(12)}
    strip = StepStrip.of("run", [0], [sum(many.values())], lambda _: many)
    names = [name for name, _ in strip.parts]
    assert names == [*(f"phase {number}" for number in range(8)), "other"]
    assert sum(ns[0] for _, ns in strip.parts) == strip.mean_ns[0]
