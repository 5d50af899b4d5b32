"""The labelled set for all tests of the advice: each trace is made and judged once."""

from __future__ import annotations

import functools

import pytest
from tests.support.planted import SCENARIOS, dump

from stepscope.advice.diagnosis import diagnose
from stepscope.run.reader import open_run


@pytest.fixture(scope="session")
def judge(tmp_path_factory):
    """Gives the file of a scenario, by its name, and the diagnosis of it."""
    folder = tmp_path_factory.mktemp("planted")
    numbers = {scenario.name: number for number, scenario in enumerate(SCENARIOS)}

    @functools.cache
    def judged(name):
        path = folder / f"{numbers[name]}.pt.trace.json"
        path.write_bytes(dump(SCENARIOS[numbers[name]].build()))
        path.chmod(0o400)
        return path, diagnose(open_run(str(path)))

    return judged
