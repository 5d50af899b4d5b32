"""Diagnoses of traces, for all tests of the advice; those of the labelled set are made once."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle

import pytest
from tests.support.gpu_trace import GpuTrace
from tests.support.in_turn import waiting_for_the_first
from tests.support.planted import SCENARIOS, dump

from stepscope.advice.diagnosis import Diagnosis, diagnose
from stepscope.opening.reader import open_run


@pytest.fixture(scope="session")
def judge(tmp_path_factory):
    """Gives the file of a scenario, by its name, and the diagnosis of it.

    Workers of xdist share them: the first to need one makes it, and the others read what it kept.
    """
    base = tmp_path_factory.getbasetemp()
    is_shared = "PYTEST_XDIST_WORKER" in os.environ
    folder = (base.parent if is_shared else base) / "planted"
    folder.mkdir(exist_ok=True)
    numbers = {scenario.name: number for number, scenario in enumerate(SCENARIOS)}

    @functools.cache
    def judged(name):
        number = numbers[name]
        path, kept = folder / f"{number}.pt.trace.json", folder / f"{number}.pickle"
        turn = folder / f"{number}.turn"
        turn.touch()
        with waiting_for_the_first(turn) if is_shared else contextlib.nullcontext():
            if kept.exists():
                return path, pickle.loads(kept.read_bytes())
            if not path.exists():
                path.write_bytes(dump(SCENARIOS[number].build()))
                path.chmod(0o400)
            diagnosis = diagnose(open_run(str(path)))
            if is_shared:
                written = kept.with_suffix(".new")
                written.write_bytes(pickle.dumps(diagnosis))
                written.replace(kept)
            return path, diagnosis

    return judged


@pytest.fixture
def diagnose_trace(tmp_path):
    """Writes a trace to a file, and diagnoses that."""

    def diagnosed(t: GpuTrace) -> Diagnosis:
        path = tmp_path / "one.pt.trace.json"
        path.write_bytes(dump(t))
        return diagnose(open_run(str(path)))

    return diagnosed
