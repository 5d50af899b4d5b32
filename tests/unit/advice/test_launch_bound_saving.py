"""The saving of launch-bound is not larger than the host time that it is taken from."""

from __future__ import annotations

import pytest
from tests.support.planted import SCENARIOS, dump

from stepscope.advice.diagnosis import diagnose
from stepscope.run.reader import open_run


@pytest.mark.parametrize("name", ["launch-bound", "starved GPU"])
def test_it_is_taken_from_dispatch_and_launches(tmp_path, name):
    path = tmp_path / "trace.pt.trace.json"
    path.write_bytes(dump(next(one for one in SCENARIOS if one.name == name).build()))
    diagnosis = diagnose(open_run(str(path)))
    (finding,) = (one for one in diagnosis.findings if one.id == "launch-bound")
    seen = {item.label: item.value for item in finding.evidence}
    spent_ns = seen["host time in dispatch and launches, per step"]
    assert finding.saving_ns is not None
    assert seen["idle for late launches, per step"] <= spent_ns
    assert finding.saving_ns <= spent_ns
