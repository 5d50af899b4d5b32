"""The product's promise, on real trainings: diagnose, predict, fix, measure."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from tests.support.guides import environment
from tests.support.warm_python import warm_python

from stepscope.commands.main import main

ATTEMPTS = 3
"""Tries, since a shared machine may change its speed between the two trainings of a try."""


def demo(tmp_path, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "stepscope", "demo", "--output-dir", str(tmp_path), *arguments],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def busy_cpus_found(run, capfd):
    assert main(["report", str(run), "--format", "json"]) == 0
    findings = json.loads(capfd.readouterr().out)["findings"]
    return "busy-cpus" in [finding["id"] for finding in findings]


@pytest.mark.slow  # an idle machine keeps the promise; a busy one is another after each training
def test_the_prediction_comes_true_within_20_percent(tmp_path):
    errors = []
    for attempt in range(ATTEMPTS):
        result = demo(tmp_path / str(attempt), "--format", "json", "--steps", "45")
        assert result.returncode == 0, result.stderr
        outcome = json.loads(result.stdout)
        assert outcome["first_finding"] == "input-bound"
        assert outcome["same_loss"]
        assert outcome["predicted_step_ns"] < outcome["before"]["step_ns"]
        errors.append(outcome["prediction_error"])
        if errors[-1] is None:  # a busy machine says so, instead of a number
            continue
        if abs(errors[-1]) <= 0.2:
            return
    if errors == [None] * ATTEMPTS:
        pytest.skip("the machine was too busy to tell")
    pytest.fail(f"predictions were off by {errors}")


@pytest.mark.long
def test_it_finds_what_it_plants_and_shows_promise_and_outcome(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(sys, "executable", warm_python())
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    for attempt in range(ATTEMPTS):
        code = main(["demo", "--output-dir", str(tmp_path / str(attempt)), "--steps", "24"])
        printed = capfd.readouterr()
        # It says itself where a busy machine's delays were longer than what it planted.
        if code == 0 or "the machine may be too busy" not in printed.err:
            break
    assert code == 0, printed.err
    for words in ("Verdict", "input-bound", "predicted", "stepscope report"):
        assert words in printed.out
    assert "both trainings end with the same loss" in printed.out
    is_busy = any(
        busy_cpus_found(tmp_path / str(attempt) / name, capfd)
        for name in ("slow", "fixed", "fixed-again", "slow-again")
    )
    assert ("waited for CPUs" in printed.out) == is_busy
    traces = (tmp_path / str(attempt)).rglob("trace.json*")
    # Only the first two are looked into; the others are timed alone.
    assert {path.relative_to(tmp_path / str(attempt)).parts[0] for path in traces} == {
        "slow",
        "fixed",
    }
    is_measured = re.search(r"(?m)^ +measured +[\d.]+ ", printed.out) is not None
    assert is_measured != ("cannot tell now" in " ".join(printed.out.split()))
    assert main(["report", str(tmp_path / str(attempt) / "slow"), "--format", "json"]) == 0
    document = json.loads(capfd.readouterr().out)
    found = [finding["id"] for finding in document["findings"]]
    # Nothing stands above the planted fault, unless other programs took the CPUs.
    place = found.index("input-bound")
    assert set(found[:place]) <= {"busy-cpus"}
    finding = document["findings"][place]
    assert 0 < finding["predicted_step_ns"] < document["ranks"][0]["step_ns"]
