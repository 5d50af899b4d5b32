"""`stepscope export` as a user runs it, its files read by the tools that they are for."""

from __future__ import annotations

import csv
import errno
import gzip
import json
import os
from pathlib import Path

import openpyxl
import polars as pl
import pytest
from click.testing import CliRunner
from perfetto.protos.perfetto.trace import perfetto_trace_pb2
from tests.support.viewer import training

from stepscope.analysis.questions import QUESTIONS
from stepscope.commands.main import cli
from stepscope.trace.load import load


@pytest.fixture
def trace_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "job.json"
    path.write_bytes(training().json())
    return path


def export(*words):
    return CliRunner().invoke(cli, ["export", *map(str, words)], catch_exceptions=False)


def test_the_ending_of_the_output_chooses_the_format(trace_file, tmp_path):
    done = export(trace_file, "--steps", "1", "-o", tmp_path / "one.pftrace.gz")
    assert done.exit_code == 0
    assert "slices" in done.output
    found = perfetto_trace_pb2.Trace()
    found.ParseFromString(gzip.decompress((tmp_path / "one.pftrace.gz").read_bytes()))
    begins = sum(packet.track_event.type == 1 for packet in found.packet)
    words = done.output.rpartition(": ")[2].split()
    assert begins == sum(int(words[at].replace(",", "")) for at in (0, 2))


def test_findings_are_marked_at_their_place(trace_file, tmp_path):
    export(trace_file, "-o", tmp_path / "with.pftrace")
    found = perfetto_trace_pb2.Trace()
    found.ParseFromString((tmp_path / "with.pftrace").read_bytes())
    titles = [packet.track_descriptor.name for packet in found.packet]
    assert "findings" in titles
    export(trace_file, "--no-findings", "-o", tmp_path / "without.pftrace")
    found.ParseFromString((tmp_path / "without.pftrace").read_bytes())
    assert "findings" not in [packet.track_descriptor.name for packet in found.packet]


def test_a_trace_that_cannot_be_judged_is_exported_and_says_so(tmp_path):
    path = tmp_path / "frames.json"
    frame = {"ph": "X", "cat": "fee", "name": "f (a.py:1)", "pid": 1, "tid": 1, "ts": 1, "dur": 5}
    path.write_text(json.dumps([frame]))
    done = export(path, "-o", tmp_path / "frames.pftrace")
    assert done.exit_code == 0
    assert "1 slices" in done.output
    assert "findings are not marked:" in done.output
    assert "holds no operators" in done.output


def test_a_cycle_that_the_end_of_the_loop_cut_says_so(tmp_path):
    """Torch calls the handler once more at the end, with next to nothing."""
    path = tmp_path / "trace.json"
    step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#16", "pid": 1, "tid": 1}
    path.write_text(json.dumps({"traceEvents": [{**step, "ts": 1, "dur": 65}]}))
    done = export(path, "-o", tmp_path / "trace.pftrace")
    assert "holds the start of step 16, and no operators: the loop ended there" in done.output
    assert "put `p.step_num` into the name" in done.output


def test_a_cut_trace_opens_like_any_other(trace_file, tmp_path):
    assert export(trace_file, "--to", "chrome", "--steps", "2").exit_code == 0
    assert load(tmp_path / "job.json.gz").steps["step"].to_list() == [2]


def test_a_workbook_has_a_sheet_per_table(trace_file, tmp_path):
    assert export(trace_file, "--to", "xlsx", "--steps", "1").exit_code == 0
    book = openpyxl.load_workbook(tmp_path / "job.xlsx")
    rows = list(book["operators"].iter_rows(values_only=True))
    name = rows[0].index("name")
    assert {row[name] for row in rows[1:]} >= {"aten::mm", "aten::relu"}
    assert all(type(row[rows[0].index("count")]) is int for row in rows[1:])


def test_text_in_a_workbook_is_never_a_formula(tmp_path):
    events = [
        {"ph": "X", "cat": "cpu_op", "name": '=HYPERLINK("http://x","y")', "pid": 1, "tid": 1,
         "ts": 1, "dur": 5},
    ]  # fmt: skip
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": events}))
    export(tmp_path / "t.json", "--to", "xlsx", "-o", tmp_path / "t.xlsx")
    rows = openpyxl.load_workbook(tmp_path / "t.xlsx")["operators"].iter_rows()
    (cell,) = (one for row in rows for one in row if "HYPERLINK" in str(one.value))
    assert (cell.value, cell.data_type) == ('=HYPERLINK("http://x","y")', "s")


@pytest.mark.parametrize("format_name", ["csv", "parquet"])
def test_every_answer_is_a_file(trace_file, tmp_path, format_name):
    done = export(trace_file, "--to", format_name, "-o", tmp_path / "tables")
    files = {path.name.split(".")[0] for path in (tmp_path / "tables").iterdir()}
    alone = {question.name for question in QUESTIONS if not question.over_ranks}
    said = {line.split(":")[0] for line in done.output.splitlines()}
    assert alone <= files | said
    path = tmp_path / "tables" / f"operators.{format_name}"
    if format_name == "csv":
        with path.open() as file:
            names = {row["name"] for row in csv.DictReader(file)}
    else:
        names = set(pl.read_parquet(path)["name"])
    assert "aten::mm" in names


@pytest.mark.sampled(2)
@pytest.mark.parametrize("to", ["csv", "parquet"])
@pytest.mark.parametrize("is_there", [False, True])
def test_of_a_folder_that_does_not_fit_on_the_disk_nothing_stays(
    trace_file, tmp_path, monkeypatch, to, is_there
):
    """Files of an earlier export, and of others, are as they were."""
    target = tmp_path / "tables"
    if is_there:
        assert export(trace_file, "--to", to, "--steps", "1", "-o", target).exit_code == 0
        (target / "mine.txt").write_text("mine")
    before = files_below(tmp_path)
    opened = []
    real = Path.open

    def open_until_full(path, mode="r", *more, **named):
        if "w" in mode and path.suffix == ".tmp":
            opened.append(path)
            if len(opened) == 2:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, mode, *more, **named)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", open_until_full)
        result = CliRunner().invoke(cli, ["export", str(trace_file), "--to", to, "-o", str(target)])
    assert result.exit_code != 0
    assert opened
    message = str(result.exception)
    assert message.startswith(str(target))
    assert message.endswith("cannot be written: No space left on device")
    assert files_below(tmp_path) == before
    assert export(trace_file, "--to", to, "-o", target).exit_code == 0
    assert not list(target.rglob("*.tmp"))
    if is_there:
        assert (target / "mine.txt").read_text() == "mine"


def files_below(folder):
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def test_ranks_of_a_run_go_into_one_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs"
    folder.mkdir()
    for rank in (0, 1):
        t = training()
        t.rank, t.world_size = rank, 2
        (folder / f"rank{rank}.pt.trace.json").write_bytes(t.json())
    assert export(folder, "--to", "perfetto").exit_code == 0
    found = perfetto_trace_pb2.Trace()
    found.ParseFromString((tmp_path / "runs.pftrace").read_bytes())
    titles = {packet.track_descriptor.name for packet in found.packet}
    assert {"rank 0", "rank 1"} <= titles
    assert export(folder, "--to", "chrome", "--rank", "1", "-o", "one.json").exit_code == 0
    assert load(tmp_path / "one.json").header["distributedInfo"]["rank"] == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give a format with --to"),
        (["--to", "chrome", "--rank", "4"], "has no rank 4; it has 0"),
        (["--to", "chrome", "--steps", "7"], "has no step 7"),
    ],
)
def test_what_cannot_be_exported_is_said(trace_file, words, message):
    result = CliRunner().invoke(cli, ["export", str(trace_file), *words])
    assert result.exit_code != 0
    assert message in result.output + str(result.exception)
    assert [path.name for path in trace_file.parent.iterdir()] == [trace_file.name]
