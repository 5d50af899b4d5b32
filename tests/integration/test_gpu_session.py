"""The session that runs where a GPU is at hand: it must work at once there, so it runs here too."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time

import pytest
import torch
from tests.support.guides import environment
from tests.support.project import ROOT
from tests.support.warm_python import warm_python

SCRIPT = ROOT / "scripts" / "gpu_session.py"
SPEC = importlib.util.spec_from_file_location("gpu_session", SCRIPT)
gpu_session = importlib.util.module_from_spec(SPEC)
sys.modules["gpu_session"] = gpu_session  # where its dataclasses look for their module
SPEC.loader.exec_module(gpu_session)

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")


def session(*arguments, timeout=240, python=None):
    result = subprocess.run(
        [python or warm_python(), str(SCRIPT), *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture
def running(tmp_path):
    return gpu_session.Session(tmp_path, tmp_path, 60)


def test_the_plan_fits_its_minutes_and_names_every_part():
    lines = session("--dry-run").splitlines()
    names = [line.split()[0] for line in lines[:-1]]
    assert names == [part.name for part in gpu_session.plan()]
    assert sum(part.expected_s for part in gpu_session.plan()) < 720 - gpu_session.RESERVE_S
    assert f"{len(names)} parts" in lines[-1]


def test_trainings_and_snapshots_are_those_of_the_scripts():
    for script, names in (
        ("gpu_trainings", gpu_session.TRAININGS),
        ("gpu_snapshots", gpu_session.SNAPSHOTS),
    ):
        result = subprocess.run(
            [warm_python(), str(SCRIPT.with_name(f"{script}.py")), "--help"],
            env=environment(),
            capture_output=True,
            text=True,
            check=True,
        )
        choices = result.stdout[result.stdout.index("{") + 1 : result.stdout.index("}")]
        assert choices.split(",") == list(names)


def test_an_unknown_part_is_refused():
    with pytest.raises(SystemExit, match="no such part: nonsense"):
        gpu_session.chosen(gpu_session.plan(), "training,nonsense")


@without_gpu
def test_what_needs_a_gpu_is_skipped_and_said(tmp_path):
    output = session("--only", "machine,launch-bound,leak", "--out", str(tmp_path), "--bundle")
    assert "- training:launch-bound, snapshot:leak: torch finds no GPU" in output.splitlines()
    assert "| leak |  |  | torch finds no GPU |" in output.splitlines()
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["measure:machine"]["device"] == "no GPU"
    assert output.endswith((tmp_path / "table.md").read_text())
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "log.txt",
        "results.json",
        "table.md",
    ]


def test_a_part_that_fails_leaves_the_end_of_its_stderr(running, monkeypatch):
    monkeypatch.setattr(sys, "executable", warm_python())
    monkeypatch.setattr(running, "environment", environment())
    running.run(gpu_session.Part("training:no-such-training", 1, 60))
    (failed,) = running.results.values()
    assert failed["failed"].startswith("exit status 2: ")
    assert "invalid choice: 'no-such-training'" in failed["failed"]
    assert "invalid choice" in (running.out / "table.md").read_text()


def test_a_part_is_ended_at_its_limit_with_its_children(running):
    began = time.monotonic()
    child = "import time; time.sleep(300)"
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    _, problem = running._process(["-c", script], 1)
    assert problem.startswith("ended after 1 s")
    assert time.monotonic() - began < 60


def test_without_time_parts_are_not_begun(tmp_path):
    ended = gpu_session.Session(tmp_path, tmp_path, 0)
    ended.run(gpu_session.Part("measure:machine", 10, 60))
    assert "no time was left" in ended.results["measure:machine"]["not_run"]


def test_archives_stay_below_their_size_and_lose_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_session, "ARCHIVE_BYTES", 10_000)
    paths = [tmp_path / str(number) for number in range(7)]
    for path, size in zip(paths, (3000, 4000, 9000, 2000, 1000, 5000, 500), strict=True):
        path.write_bytes(bytes(size))
    *bins, left_out = gpu_session._archives(paths, 3)
    assert sorted(path for part in [*bins, left_out] for path in part) == sorted(paths)
    assert all(sum(path.stat().st_size for path in part) < 10_000 for part in bins)
    assert left_out == [paths[2]]  # with the archive's own bytes it is too large for any


def row(first="launch-bound", predicted=60, fixed=65, samples=1, *, is_upper_bound=False):
    """The row of a training of 100 ns per step, reported as 200 ns."""
    found = {
        "before": {"step_ns": 100, "samples": 1},
        "fixed": {"step_ns": fixed, "samples": samples},
        "expected": ["launch-bound"],
        "forbidden": ["input-bound"],
        "fix": "a graph",
    }
    finding = {
        "id": first,
        "saving_ns": 200 - 2 * predicted,
        "predicted_step_ns": 2 * predicted,
        "is_upper_bound": is_upper_bound,
    }
    report = {"verdict": first, "step_ns": 200, "findings": [finding]}
    cells = gpu_session.judged("launch-bound", found, {"launch-bound-before": report})
    return dict(zip(gpu_session.COLUMNS, cells, strict=True))


def test_a_promise_is_judged_by_the_unrecorded_steps():
    assert row()["error"] == "-5.0 %"
    assert row()["right?"] == "cause right, saving right"
    assert row(predicted=40)["right?"] == "cause right, SAVING WRONG"
    # At best: the fix may bring less, but never more.
    assert row(predicted=40, is_upper_bound=True)["right?"] == "cause right, saving right"
    assert row(predicted=80, is_upper_bound=True)["right?"] == "cause right, SAVING WRONG"
    assert row(fixed=650, samples=10)["error"] == "-5.0 %"
    assert row(first="input-bound")["right?"] == "CAUSE WRONG, input-bound WRONG"


@pytest.mark.slow
@without_gpu
def test_the_whole_session_without_a_gpu(tmp_path):
    output = session(
        "--out", str(tmp_path), "--bundle", "--minutes", "8", timeout=600, python=sys.executable
    )
    results = json.loads((tmp_path / "results.json").read_text())
    assert set(results) == {part.name for part in gpu_session.plan()}
    for name, found in results.items():
        assert ("skipped" in found) == (name not in gpu_session.ALSO_ON_CPU), (name, found)
        assert "failed" not in found, (name, found)
    assert "| starved-loader |" in output
    files = list(tmp_path.iterdir())
    assert len(files) <= 8
    assert "traces-1.tar.gz" in {path.name for path in files}
