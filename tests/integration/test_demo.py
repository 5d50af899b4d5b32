"""The product's promise, on real trainings: diagnose, predict, mend, measure."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

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
        if abs(errors[-1]) <= 0.2:
            return
    pytest.fail(f"predictions were off by {errors}")


def test_it_finds_what_it_plants_and_shows_promise_and_outcome(tmp_path):
    for attempt in range(ATTEMPTS):
        result = demo(tmp_path / str(attempt), "--steps", "24")
        # It says itself where a busy machine's delays were longer than what it planted.
        if result.returncode == 0 or "the machine may be too busy" not in result.stderr:
            break
    assert result.returncode == 0, result.stderr
    for words in ("Verdict", "input-bound", "predicted", "measured", "stepscope report"):
        assert words in result.stdout
    assert "both trainings end with the same loss" in result.stdout
    again = subprocess.run(
        [
            sys.executable, "-m", "stepscope", "report", str(tmp_path / str(attempt) / "slow"),
            "--format", "json",
        ],
        capture_output=True,
        text=True,
        timeout=250,
        check=True,
    )  # fmt: skip
    finding = json.loads(again.stdout)["findings"][0]
    assert finding["id"] == "input-bound"
    assert 0 < finding["predicted_step_ns"] < json.loads(again.stdout)["ranks"][0]["step_ns"]
