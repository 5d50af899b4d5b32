"""Report, steps, what-if and critical path state one step time, on every labelled trace."""

from __future__ import annotations

import pytest
from tests.support.one_step import check_trace
from tests.support.planted import SCENARIOS, Scenario, dump


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_every_answer_states_one_step(tmp_path, scenario: Scenario):
    path = tmp_path / "trace.pt.trace.json"
    path.write_bytes(dump(scenario.build()))
    check_trace(path)
