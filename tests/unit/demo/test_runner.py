"""The demo: what it takes as found, and what it says where the CPUs were busy."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.support.rendered import rendered

from stepscope.advice.finding import Finding, Severity
from stepscope.demo import runner
from stepscope.demo.runner import (
    DemoError,
    DemoOutcome,
    TrainingOutcome,
    compare,
    input_finding,
    run_demo,
)
from stepscope.errors import UsageError
from stepscope.trial.measure import ProcessSteps


def finding(name: str) -> Finding:
    return Finding(
        id=name, title=name, severity=Severity.HIGH, rank=0, saving_ns=40, saving_reason="",
        assumption="", predicted_step_ns=60, evidence=(), steps=(), advice="",
    )  # fmt: skip


def training(*names: str, step_ns: int = 100, error_ns: float = 0.5) -> TrainingOutcome:
    diagnosis = SimpleNamespace(
        findings=tuple(finding(name) for name in names),
        run=SimpleNamespace(path=Path("a/run")),
        ranks=(SimpleNamespace(step_ns=step_ns),),
    )
    steps = ProcessSteps(step_ns, error_ns, steps=24, blocks=6)
    return TrainingOutcome(diagnosis, 1.0, "cpu", 5, steps)  # type: ignore[arg-type]


def outcome(before: TrainingOutcome, after: TrainingOutcome) -> DemoOutcome:
    planted = input_finding(before)
    return compare((before, before), (after, after), planted, workers=2)


def test_the_planted_fault_is_taken_from_below_busy_cpus():
    before = training("busy-cpus", "input-bound")
    assert input_finding(before).id == "input-bound"
    assert before.had_busy_cpus
    assert not training("input-bound").had_busy_cpus


@pytest.mark.parametrize(
    ("names", "said"), [((), "none"), (("busy-cpus", "slow-start"), "'busy-cpus', 'slow-start'")]
)
def test_a_fault_that_was_not_found_is_an_error_with_what_was_found(names, said):
    with pytest.raises(DemoError, match=f"'input-bound' and got {said}: the machine may be"):
        input_finding(training(*names))


def written(result: DemoOutcome) -> str:
    return " ".join(rendered("demo", "table", result).split())


def test_on_a_quiet_machine_it_says_how_good_the_prediction_was():
    result = outcome(training("input-bound"), training(step_ns=60))
    assert result.is_clear
    assert "measured 60 ns 60% of the step before (" in written(result)
    assert "the prediction is off by +0.0%" in written(result)
    told = json.loads(rendered("demo", "json", result))
    assert told["prediction_error"] == 0
    assert told["measured_share_low"] < told["measured_share"] < told["measured_share_high"]
    assert told["first_finding"] == "input-bound"


@pytest.mark.parametrize(("before", "after"), [(True, False), (False, True), (True, True)])
def test_on_a_busy_machine_it_says_no_number(before, after):
    busy = ("busy-cpus",)
    result = outcome(
        training(*(busy if before else ()), "input-bound"),
        training(*(busy if after else ()), step_ns=60),
    )
    assert "cannot tell now how good the prediction was: the trainings waited for CPUs" in written(
        result
    )
    assert "measured" not in written(result)
    told = json.loads(rendered("demo", "json", result))
    assert told["prediction_error"] is None
    assert told["before"]["had_busy_cpus"] == before
    assert told["after"]["had_busy_cpus"] == after


def test_steps_that_differ_too_much_give_an_interval_and_no_error():
    result = outcome(training("input-bound"), training(step_ns=60, error_ns=9))
    assert "% of the slow one (95%)" in written(result)
    assert json.loads(rendered("demo", "json", result))["prediction_error"] is None


def test_a_machine_that_slows_down_meanwhile_favours_neither_training():
    first, second = training("input-bound"), training("input-bound", step_ns=200)
    fixed, again = training(step_ns=60), training(step_ns=120)
    compared = compare((first, second), (fixed, again), input_finding(first), workers=2)
    assert compared.share.value == pytest.approx(0.6)


def test_nothing_is_begun_without_torch(monkeypatch, tmp_path):
    begun = []
    audience = SimpleNamespace(begin=lambda: begun.append(True))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(DemoError, match="needs torch"):
        run_demo(tmp_path, 24, audience)
    assert not begun
    assert not list(tmp_path.iterdir())


def test_an_interrupted_demo_does_not_wait_for_its_training(tmp_path, monkeypatch):
    """The signal reaches the training, too, but it may be lost there."""
    started = []

    class Popen(subprocess.Popen):
        def __init__(self, _words, **options):
            lasting = "import time; print('{\"step\": 1}', flush=True); time.sleep(200)"
            super().__init__([sys.executable, "-c", lasting], **options)
            started.append(self)

    def interrupted(_done, _steps):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner.subprocess, "Popen", Popen)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        runner.train(tmp_path, "slow", 24, 0, interrupted)
    assert time.monotonic() - began < 100
    assert started[0].returncode is not None


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--output-dir .*: cannot be written: "):
        runner.train(tmp_path / "file" / "inside", "slow", 24, 0, lambda _done, _steps: None)
