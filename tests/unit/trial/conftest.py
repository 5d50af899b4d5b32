"""For the tests of trials."""

from __future__ import annotations

import pytest
from tests.support.trial_machine import SILENT
from tests.support.trial_records import trials_record as make

from stepscope.trial import experiment as module
from stepscope.trial.attempts import Bench
from stepscope.trial.experiment import Request, try_fixes


@pytest.fixture
def trials_record():
    return make()


@pytest.fixture
def try_on(tmp_path, monkeypatch):
    """Runs an experiment on a machine."""

    def run(machine, **more):
        monkeypatch.chdir(tmp_path)

        def attempt(bench, *given, **named):
            return machine.attempt(bench, *given, **named)

        monkeypatch.setattr(Bench, "attempt", attempt)
        monkeypatch.setattr(module.time, "monotonic", lambda: machine.now)
        scratch = tmp_path / f"scratch{len(list(tmp_path.iterdir()))}"
        command = ("python", "train.py", "--api-key", "hunter2")
        return try_fixes(Request(command, scratch, **more), SILENT)

    return run
