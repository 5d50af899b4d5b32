"""`stepscope report` on what is no run: one line that names the thing and the remedy."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys

import pytest
from tests.support.step_records import step_records, write_run


def report(path, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "stepscope", "report", str(path), *arguments],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
        env={**os.environ, "COLUMNS": "200"},
    )


def assert_one_line(result, *words):
    assert result.returncode == 3, result
    assert result.stdout == ""
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("stepscope: ")
    for word in words:
        assert word in lines[0]


def test_nothing_there(tmp_path):
    assert_one_line(report(tmp_path / "missing"), "missing", "no such file or directory")


def test_an_empty_folder(tmp_path):
    assert_one_line(report(tmp_path), str(tmp_path), "no run", "no trace")


def test_a_glob_without_matches(tmp_path):
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
def test_files_that_hold_no_steps(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    assert_one_line(report(path), str(path))


def test_a_trace_without_steps_says_so(tmp_path):
    path = tmp_path / "trace.json.gz"
    event = {"ph": "X", "name": "aten::add", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 0, "dur": 5}
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": [event]}).encode()))
    result = report(path)
    assert result.returncode == 0, result.stderr
    shown = " ".join(result.stdout.split())
    assert "the whole file" in shown
    assert "the profiler has a schedule and the loop calls profiler.step()" in shown


def test_a_run_that_recorded_no_step_says_how_it_ended(tmp_path):
    path = write_run(tmp_path, {0: step_records([100])})
    (path / "rank00000" / "steps.jsonl").write_bytes(b"")
    assert_one_line(report(path), "nothing to judge", "finished after 1 steps")


def test_damaged_manifests_cost_nothing_but_a_note(tmp_path):
    path = write_run(tmp_path, {0: step_records([100] * 9)})
    (path / "run.json").write_text("{ cut")
    (path / "rank00000" / "manifest.json").write_text('{"format": "something else"}')
    result = report(path)
    assert result.returncode == 0, result.stderr
    assert "100 ms" in result.stdout
    assert "run.json: not valid JSON" in result.stdout


def test_a_wrong_option_is_a_usage_error(tmp_path):
    result = report(tmp_path, "--format", "xml")
    assert result.returncode == 2
    assert "xml" in result.stderr
