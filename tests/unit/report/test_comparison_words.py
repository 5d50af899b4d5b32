"""What is on one side only has one name for people, on the terminal and on every page."""

from __future__ import annotations

import json
import statistics
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from tests.support.gpu_trace import GpuTrace, us
from tests.support.page_data import data_of
from tests.support.step_records import step_records

from stepscope.analysis.comparison.compare import compare
from stepscope.analysis.comparison.side import make_side
from stepscope.analysis.record.summary import summarise_steps
from stepscope.commands.main import cli
from stepscope.report import units
from stepscope.report.comparison import COLUMNS, cells, headline
from stepscope.trace.load import load
from stepscope.viewer.findings import comparison_of


@pytest.fixture
def sides(tmp_path):
    for name in ("old", "young"):
        trace = GpuTrace()
        for _ in range(4):
            with trace.step():
                trace.op("aten::mm").launch(f"{name}_kernel", us(100))
        (tmp_path / f"{name}.json").write_bytes(trace.json())
    return [str(tmp_path / f"{name}.json") for name in ("old", "young")]


def compared(sides, form):
    result = CliRunner().invoke(cli, ["compare", *sides, "--format", form])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("form", ["table", "md", "html"])
def test_people_read_new_and_gone(sides, form):
    said = compared(sides, form)
    shown = json.dumps(data_of(said)) if form == "html" else said
    assert "new" in shown
    assert "gone" in shown
    assert "appeared" not in shown


def test_the_viewer_says_the_same(sides):
    found = comparison_of(*(SimpleNamespace(trace=load(path)) for path in sides))
    assert {row["status"] for row in found["changes"]["kernel"]} == {"new", "gone"}


def test_programs_read_what_they_always_did(sides):
    changes = json.loads(compared(sides, "json"))["changes"]
    kernels = {row["name"]: row["status"] for row in changes if row["table"] == "kernel"}
    assert kernels == {"old_kernel": "disappeared", "young_kernel": "appeared"}
    assert "disappeared" in compared(sides, "csv")


@pytest.mark.parametrize("width", ["40", "60", "80"])
def test_a_narrow_terminal_leaves_columns_out_and_cuts_no_number(sides, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", width)
    lines = compared(sides, "table").splitlines()
    (row,) = (line for line in lines if line.startswith("  old_kernel"))
    assert "−100 µs" in row
    assert row.endswith("gone")
    assert "…" not in row
    heading = [line for line in lines[: lines.index(row)] if line.startswith("  name")][-1]
    assert heading.split()[-1 if width == "40" else 3] == "change"
    assert ("before" in heading) == (width != "40")


@pytest.fixture
def with_a_slow_step(tmp_path):
    """Even steps, and after the change one of them is longer, but not so long as to be left out."""
    for name, lengths in (("before", (100,) * 6), ("after", (100, 100, 150, 100, 100, 100))):
        trace = GpuTrace()
        for length in lengths:
            with trace.step():
                trace.op("aten::mm").launch("gemm", us(length))
        (tmp_path / f"{name}.json").write_bytes(trace.json())
    return [str(tmp_path / f"{name}.json") for name in ("before", "after")]


def test_what_parts_add_up_to_stands_above_them(with_a_slow_step):
    """One slow step moves the mean, which parts add up to, but not the median of the headline."""
    document = json.loads(compared(with_a_slow_step, "json"))
    parts = [row for row in document["changes"] if row["table"] == "part"]
    for side in "ab":
        mean_ns = statistics.mean(document[side]["step_ns"])
        assert sum(row[f"{side}_ns"] for row in parts) == pytest.approx(mean_ns, abs=len(parts))
    medians = [units.duration(document["step"][f"{side}_ns"]) for side in "ab"]
    means = [units.duration(round(statistics.mean(document[side]["step_ns"]))) for side in "ab"]
    assert medians[1] != means[1]
    for form in ("table", "md"):
        said = compared(with_a_slow_step, form)
        assert f"median step {medians[0]} → {medians[1]}: " in said
        (line,) = (line for line in said.splitlines() if "Parts of the step" in line)
        assert line.endswith(f"mean step {means[0]} → {means[1]}")


def test_a_part_that_one_step_lacks_has_no_calls():
    row = {
        "table": "part", "name": "backward", "status": "same", "a_ns": 5, "b_ns": 5, "delta_ns": 0,
        "noise_ns": 1, "a_count": 1.0, "b_count": 0.995,
    }  # fmt: skip
    assert cells(row)[COLUMNS.index("calls/step")] == ""
    assert cells({**row, "table": "kernel"})[COLUMNS.index("calls/step")]


def test_the_headline_of_rounds_has_the_lower_quartile_too():
    """Every other step waits for others; what the quicker ones take changes by a tenth."""

    def runs(quick_ms, slow_ms):
        rows = [step_records([quick_ms, slow_ms] * 20) for slow_ms in slow_ms]
        return [make_side("run", None, one, summarise_steps(one)) for one in rows]

    before, after = runs(10.0, (14.0, 12.0, 15.0)), runs(11.0, (13.0, 16.0, 12.0))
    words = headline(compare(before, after, in_rounds=True))
    assert words.endswith("; lower quartile 10% more (95% interval +10% to +10%)")
    assert "lower quartile" not in headline(compare(before, after))
