"""Report, steps, what-if and critical path state one step time, on every labelled trace."""

from __future__ import annotations

import random

import pytest
from tests.support.one_step import check_run, check_trace
from tests.support.planted import SCENARIOS, Scenario, dump
from tests.support.step_records import step_records, write_run

from stepscope.analysis.questions import ask_all, question
from stepscope.analysis.selection.scope import Scope
from stepscope.report.scope import describe_scope
from stepscope.trace.load import load
from stepscope.trace.paths import resolve_traces


@pytest.mark.sampled(10)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_every_answer_states_one_step(judge, scenario: Scenario):
    path, diagnosis = judge(scenario.name)
    check_trace(load(path), diagnosis)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_of_a_run_it_is_the_step_of_the_record(tmp_path, scenario: Scenario):
    """Whatever the record says, since a window's steps are longer or shorter than the others."""
    chance = random.Random(scenario.name)
    steps = [chance.uniform(0.5, 30) for _ in range(40)]
    waits = [step * chance.choice((0, 0, 0.01, 0.6)) for step in steps]
    records = step_records(steps, waits_ms=waits, recorded=range(20, 23))
    check_run(write_run(tmp_path, {0: records}, windows={0: dump(scenario.build())}))


def test_the_scope_states_both_step_times(tmp_path):
    trace = dump(next(one for one in SCENARIOS if one.name == "slow loader").build())
    run = write_run(tmp_path, {0: step_records([6.1] * 40)}, windows={0: trace})

    def scope_of(name: str, asked: Scope | None = None) -> str:
        (answer,) = ask_all(question(name), resolve_traces((str(run),)), asked).answers
        return describe_scope(answer.result.scope)

    both = "6.10 ms, mean of 40 steady steps"
    assert "tables of recorded steps (" in scope_of("steps")
    assert f"not of all the run's ({both})" in scope_of("steps")
    assert "scaled from recorded steps (" in scope_of("what-if")
    assert f"to the run's ({both})" in scope_of("what-if")
    # The steps that somebody asks for take what they take, and kernels have no step time.
    assert "6.10" not in scope_of("steps", Scope(steps=(1, 2)))
    assert "6.10" not in scope_of("kernels")
