"""Two versions in turns: the order, the budget, what fails, and the verb's answer."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner
from tests.support.trial_machine import SILENT, Machine

from stepscope.commands.main import cli
from stepscope.errors import UsageError
from stepscope.opening.trials import CRASHED
from stepscope.trial import interleaved as module
from stepscope.trial.attempts import Bench, TrialError
from stepscope.trial.interleaved import Request, run_interleaved


@pytest.fixture
def on(tmp_path, monkeypatch):
    """Lets a machine stand in for the processes."""

    def stand_in(machine):
        monkeypatch.chdir(tmp_path)

        def attempt(bench, *given, **named):
            return machine.attempt(bench, *given, **named)

        monkeypatch.setattr(Bench, "attempt", attempt)
        monkeypatch.setattr(module.time, "monotonic", lambda: machine.now)
        return machine

    return stand_in


def request(tmp_path, runs=3, budget_s=1000.0):
    command = ("python", "train.py", "{version}")
    return Request(("old", "new"), command, tmp_path / "scratch", runs, 40, budget_s)


def test_a_round_that_the_budget_cuts_short_leaves_those_before_it(on, tmp_path):
    on(Machine({}, wall_s=10.0, slow={"after-3": 25.0}))
    turns = run_interleaved(request(tmp_path, budget_s=90.0), SILENT)
    assert [run.name for run in turns.before] == ["before-1", "before-2"]
    assert [run.name for run in turns.after] == ["after-1", "after-2"]
    (spent,) = turns.notes
    assert "the budget was spent after 2 runs of each version" in spent
    on(Machine({}, wall_s=10.0, slow={"after-3": 100.0}))
    with pytest.raises(TrialError, match="after, run 3: hung"):
        run_interleaved(request(tmp_path), SILENT)


def test_versions_run_in_turns_and_every_other_round_in_reverse(on, tmp_path):
    machine = on(Machine({}))
    turns = run_interleaved(request(tmp_path), SILENT)
    assert machine.names == [
        *("before-rehearsal", "after-rehearsal"),
        *("before-1", "after-1", "after-2", "before-2", "before-3", "after-3"),
    ]
    assert [run.name for run in turns.before] == ["before-1", "before-2", "before-3"]
    assert turns.notes == ()


def test_a_budget_that_ends_early_leaves_the_rounds_that_were_made(on, tmp_path):
    on(Machine({}, wall_s=10.0, busy=(0.7,)))
    turns = run_interleaved(request(tmp_path, runs=5, budget_s=70.0), SILENT)
    assert len(turns.before) == len(turns.after) == 2
    spent, busy = turns.notes
    assert "the budget was spent after 2 runs of each version; --budget 144s would do" in spent
    assert "70% of the CPUs" in busy


def test_a_budget_for_fewer_than_two_runs_says_what_would_do(on, tmp_path):
    on(Machine({}, wall_s=10.0))
    with pytest.raises(TrialError, match="--budget 144s would do for 5"):
        run_interleaved(request(tmp_path, runs=5, budget_s=45.0), SILENT)


def test_a_version_that_fails_is_named(on, tmp_path):
    on(Machine({}, failures={"after-2": CRASHED}))
    with pytest.raises(TrialError, match="after, run 2: crashed: because"):
        run_interleaved(request(tmp_path), SILENT)


def test_how_a_version_is_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "main").mkdir()
    (tmp_path / "old.py").touch()

    def command(version, *words):
        asked = Request((version, version), words, tmp_path, 2, 40, 1.0)
        found, directory = asked.command_of(version)
        return found, directory.resolve()

    there = (tmp_path / "main").resolve()
    assert command("main", "python", "x.py") == (("python", "x.py"), there)
    assert command("old.py") == (("old.py",), tmp_path.resolve())
    assert command("a", "python", "x", "--b={version}")[0] == ("python", "x", "--b=a")
    (tmp_path / "old.sh").touch()
    for version, words, said in (
        ("main", (), "main: no command: put it after --"),
        ("a", ("python", "x"), "a: no such file or folder; if it is a value, write {version}"),
        ("missing.py", (), "missing.py: no such file or folder"),
        ("old.py", ("python", "x"), "old.py: not a folder to run the command in: write {version}"),
        ("old.sh", (), "old.sh: not a Python script: put its command after --"),
    ):
        with pytest.raises(UsageError, match=re.escape(said)):
            command(version, *words)


@pytest.mark.parametrize(
    ("after_ms", "noise", "code", "outcome"),
    [
        (22.0, 0.01, 1, "failed"),
        (20.0, 0.01, 0, "passed"),
        (20.4, 0.1, 0, "cannot tell"),
    ],
)
def test_the_verb_judges_the_runs(on, tmp_path, after_ms, noise, code, outcome):
    on(Machine({"after": after_ms}, noise=noise))
    words = ["gate", "--format", "json", "a", "b", "--", "python", "{version}"]
    result = CliRunner().invoke(cli, words, standalone_mode=False)
    assert result.exception is None, result.output
    assert result.return_value == code
    document = json.loads(result.stdout)
    assert [check["outcome"] for check in document["checks"]] == [outcome]
    assert len(document["runs"]["a"]) == len(document["runs"]["b"]) == 5
    assert outcome in result.stderr


def test_runs_without_a_number_of_steps_are_as_long_as_is_worth_it(on, tmp_path):
    """Of short steps as many as take three seconds, of long ones a hundred."""
    for step_ms, steps in ((1.0, 3000), (10.0, 300), (200.0, 100)):
        machine = on(Machine({"before": step_ms, "after": 1.5 * step_ms}, noise=0.0))
        numbers = []
        attempt = machine.attempt

        def noting(bench, *given, _attempt=attempt, _numbers=numbers, **named):
            _numbers.append(bench.steps)
            return _attempt(bench, *given, **named)

        machine.attempt = noting
        asked = Request(("old", "new"), ("python", "{version}"), tmp_path, 2, None, 1000.0)
        run_interleaved(asked, SILENT)
        assert numbers == [16, 16, *4 * [steps]]
