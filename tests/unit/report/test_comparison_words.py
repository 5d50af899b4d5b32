"""What is on one side only has one name for people, on the terminal and on every page."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from tests.support.gpu_trace import GpuTrace, us
from tests.support.page_data import data_of

from stepscope.commands.main import cli
from stepscope.trace.load import load
from stepscope.viewer.judging import _comparison


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
    from stepscope.analysis.comparison.compare import compare
    from stepscope.analysis.comparison.side import make_side

    found = _comparison(compare(*(make_side(path, load(path)) for path in sides)))
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
