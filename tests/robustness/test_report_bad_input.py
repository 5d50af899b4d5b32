"""`stepscope report` on what is no run: one line that names the thing and the remedy."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys

import pytest
from tests.support.step_records import step_records, write_run

from stepscope.commands.main import main


@pytest.fixture
def report(capfd, monkeypatch):
    """The exit code of a report, and what it wrote to standard output and standard error."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(path, *arguments):
        code = main(["report", str(path), *arguments])
        return code, *capfd.readouterr()

    return run


def assert_one_line(result, *words):
    code, printed, said = result
    assert code == 3, result
    assert printed == ""
    lines = said.strip().splitlines()
    assert len(lines) == 1, said
    assert lines[0].startswith("stepscope: ")
    for word in words:
        assert word in lines[0]


def test_nothing_there(tmp_path, report):
    assert_one_line(report(tmp_path / "missing"), "missing", "no such file or directory")


def test_a_process_of_its_own_says_the_same(tmp_path, report):
    missing = str(tmp_path / "missing")
    command = [sys.executable, "-m", "stepscope", "report", missing]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == report(missing)


def test_an_empty_folder(tmp_path, report):
    assert_one_line(report(tmp_path), str(tmp_path), "no run", "no trace")


def test_a_glob_without_matches(tmp_path, report):
    assert_one_line(report(tmp_path / "*.json.gz"), "*.json.gz")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("trace.json", b""),
        ("trace.json", b"\x00\x01\x02binary"),
        ("trace.json", b"<html>not found</html>"),
        ("trace.json.gz", b"\x1f\x8b\x08\x00cut"),
        ("trace.json", b'{"weights": [1, 2, 3]}'),
        ("trace.json", b"[]"),
    ],
)
def test_files_that_hold_no_steps(tmp_path, report, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    assert_one_line(report(path), str(path))


def test_a_trace_without_steps_says_so(tmp_path, report):
    path = tmp_path / "trace.json.gz"
    event = {"ph": "X", "name": "aten::add", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 0, "dur": 5}
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": [event]}).encode()))
    code, printed, said = report(path)
    assert code == 0, said
    shown = " ".join(printed.split())
    assert "the whole file" in shown
    assert "the profiler has a schedule and the loop calls profiler.step()" in shown


def test_a_run_that_recorded_no_step_says_how_it_ended(tmp_path, report):
    path = write_run(tmp_path, {0: step_records([100])})
    (path / "rank00000" / "steps.jsonl").write_bytes(b"")
    assert_one_line(report(path), "nothing to judge", "finished after 1 steps")


def test_what_all_ranks_say_is_said_once(tmp_path, report):
    path = write_run(tmp_path, dict.fromkeys(range(3), step_records([100])))
    for steps in path.glob("*/steps.jsonl"):
        steps.write_bytes(b"")
    assert report(path)[2].count("finished after 1 steps") == 1


def test_a_trace_without_events_is_named_once(tmp_path, report):
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": []}')
    _, _, said = report(path)
    assert said == f"stepscope: {path}: nothing to judge: it holds no events\n"


def test_damaged_manifests_cost_nothing_but_a_note(tmp_path, report):
    path = write_run(tmp_path, {0: step_records([100] * 9)})
    (path / "run.json").write_text("{ cut")
    (path / "rank00000" / "manifest.json").write_text('{"format": "something else"}')
    code, printed, said = report(path)
    assert code == 0, said
    assert "100 ms" in printed
    assert "run.json: not valid JSON" in printed


def test_a_wrong_option_is_a_usage_error(tmp_path, report):
    code, _, said = report(tmp_path, "--format", "xml")
    assert code == 2
    assert "xml" in said
