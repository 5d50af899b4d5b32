"""What a page shows of a window is kept: the same page, without the trace."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.memos import loads_of, memos
from tests.support.planted import SCENARIOS, dump
from tests.support.rank_jobs import rank_of_job
from tests.support.step_records import step_records, write_run

from stepscope.advice.diagnosis import diagnose
from stepscope.advice.job.reading import details_of
from stepscope.advice.rank import window_answers
from stepscope.advice.rank.summary import RankSummary
from stepscope.advice.rank.window_details import TABLES, WindowDetails
from stepscope.advice.thresholds import Thresholds
from stepscope.analysis.selection.rows import Beginning, Rows
from stepscope.commands.main import cli
from stepscope.opening.reader import open_run
from stepscope.trace.store import memo

pytestmark = pytest.mark.usefixtures("cache_of_the_module")


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by a name whenever a trace is loaded for details."""
    return loads_of(window_answers, monkeypatch)


@pytest.fixture(scope="module")
def trace(tmp_path_factory) -> Path:
    """A trace of which summary and details are kept."""
    path = tmp_path_factory.mktemp("one") / "trace.pt.trace.json"
    path.write_bytes(dump(rank_of_job(0, (0,))))
    before = len(memos())
    details_of(diagnose(open_run(path)).shown)
    assert len(memos()) == before + 2
    return path


def page_of(path: Path, folder: Path, *words: str) -> bytes:
    file = folder / "report.html"
    done = CliRunner().invoke(cli, ["report", str(path), "-o", str(file), *words])
    assert done.exit_code == 0, done.output
    return file.read_bytes()


def check_same_twice(path: Path, folder: Path, read: list[str], *words: str) -> None:
    cold = page_of(path, folder, *words)
    assert len(read) == 1
    for file in memos():
        if b'"_Text",' in file.read_bytes()[:60]:
            file.unlink()  # the page itself, so that it is laid out again
    for _ in range(2):
        assert page_of(path, folder, *words) == cold
    assert len(read) == 1


@pytest.mark.parametrize("scenario", SCENARIOS[3:4], ids=lambda one: one.name)
def test_the_warm_page_is_the_cold_one(scenario, tmp_path, read):
    path = tmp_path / "trace.pt.trace.json"
    path.write_bytes(dump(scenario.build()))
    check_same_twice(path, tmp_path, read)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.name)
def test_the_warm_page_of_any_planted_trace_is_the_cold_one(scenario, tmp_path, read):
    path = tmp_path / "trace.pt.trace.json"
    path.write_bytes(dump(scenario.build()))
    check_same_twice(path, tmp_path, read)


@pytest.mark.slow
def test_the_warm_page_of_a_recorded_job_is_the_cold_one(tmp_path, read):
    windows = {rank: dump(rank_of_job(rank, (0, 40))) for rank in range(2)}
    records = step_records([40.5] * 30, 2, {"backward": 20}, recorded=range(27, 30))
    run = write_run(tmp_path / "run", dict.fromkeys(windows, records), windows=windows)
    check_same_twice(run, tmp_path, read)


def test_the_steps_asked_for_are_part_of_the_key(trace, tmp_path, read):
    page_of(trace, tmp_path)
    assert not read
    page_of(trace, tmp_path, "--steps", "1")
    assert len(read) == 1


def test_a_page_of_what_is_kept_imports_no_analysis(trace, tmp_path):
    words = ["report", str(trace), "--threshold", "saving_low=0.5", "-o", str(tmp_path / "a.html")]
    diagnose(open_run(trace), Thresholds().changed({"saving_low": 0.5}))
    code = (
        "import sys; from stepscope.commands.main import main\n"
        f"assert main({words}) == 0\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = set(done.stderr.split())
    assert "stepscope.report.diagnosis.page" in imported
    heavy = {"llvmlite", "stepscope.trace.load", "stepscope.analysis.kernels"}
    assert not heavy & imported


def first_table(fields: dict[str, Any]) -> dict[str, Any]:
    tables = fields["answers"][0][1]["tables"]
    return next(iter(tables.values()))[1]


def first_rows(fields: dict[str, Any]) -> dict[str, Any]:
    return first_table(fields)["rows"][1]


FOREIGN = {
    "field missing": lambda fields: fields.pop("notes"),
    "other type": lambda fields: fields["step"][1].update(dur_ns="1"),
    "uneven columns": lambda fields: first_rows(fields)["values"][0].append(1),
    "a column too many": lambda fields: first_rows(fields)["columns"].append("more"),
    "fewer rows than shown": lambda fields: first_table(fields).update(total=0),
}


@pytest.fixture(scope="module")
def shown(trace: Path) -> RankSummary:
    """The summary of that trace."""
    return diagnose(open_run(trace)).shown


@pytest.mark.parametrize("change", FOREIGN.values(), ids=FOREIGN)
def test_a_file_that_says_what_no_details_say_is_ignored(change, shown, monkeypatch, read):
    """Its digest is right."""
    real = memo._read
    made = details_of(shown)
    assert not read

    def changed(key):
        document = json.loads(real(key))
        change(document[1])
        return json.dumps(document)

    monkeypatch.setattr(memo, "_read", changed)
    assert details_of(shown) == made
    assert len(read) == 1


def test_a_damaged_file_is_made_anew(shown, cache, read):
    made = details_of(shown)
    assert len(read) == 1
    for file in memos():
        file.write_bytes(file.read_bytes()[:-10])
    assert repr(details_of(shown)) == repr(made)
    assert len(read) == 2


def test_what_is_kept_holds_every_field(trace, cache):
    """Types that the codec refuses would silently be made anew each time."""
    details_of(diagnose(open_run(trace)).shown)
    fields = {one.name for one in dataclasses.fields(WindowDetails)}
    bodies = [json.loads(file.read_bytes().partition(b"\n")[2]) for file in memos()]
    (body,) = (found for name, found in bodies if name == "WindowDetails")
    assert body.keys() == fields
    assert [one[1]["question"] for one in body["answers"]] == list(TABLES)


CELLS = st.one_of(st.none(), st.integers(-3, 3))


@settings(max_examples=30)
@given(
    st.lists(st.tuples(CELLS, CELLS, st.one_of(st.none(), st.text(max_size=2))), max_size=8),
    st.integers(0, 9),
)
def test_a_beginning_is_the_head_of_the_columns_that_say_something(rows, most):
    table = pl.DataFrame(rows, schema={"a": pl.Int64, "b": pl.Int64, "c": pl.String}, orient="row")
    beginning = Beginning.of(table, most)
    telling = {"a"} | {name for name in ("b", "c") if any(table[name].to_list())}
    assert set(beginning.rows.columns) == telling
    assert beginning.total == len(rows)
    assert beginning.rows == Rows.of(table.select(beginning.rows.columns).head(most))
    assert set(beginning.numeric) == telling - {"c"}
