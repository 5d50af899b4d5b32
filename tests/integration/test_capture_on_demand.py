"""Windows on demand in a real training of one process."""

from __future__ import annotations

import time

import pytest
from tests.support.runs import manifest_of, steps_in_trace, trace_document
from tests.support.training import SmallTraining, bare_losses, batches

import stepscope
from stepscope import open_run
from stepscope.run.triggers import Trigger, ask

NEVER = {"wait": 10**6, "warmup": 1, "active": 2, "activities": "cpu"}


def train(output, steps=20, at=None, **options):
    training = SmallTraining()
    with stepscope.Profiler(output_dir=output, **{**NEVER, **options}) as profiler:
        for number, batch in enumerate(batches(steps)):
            if at is not None:
                at(number, profiler)
            training.step(batch)
            profiler.step()
    assert training.losses == bare_losses(steps)
    return manifest_of(output).windows


def test_code_asks(tmp_path):
    def at(number, profiler):
        if number == 5:
            profiler.trigger(steps=3)

    (window,) = train(tmp_path, at=at)
    assert (window.cause, window.state) == ("code", "complete")
    assert steps_in_trace(open_run(tmp_path).windows[0].trace_path) == [7, 8, 9]


def test_a_file_asks(tmp_path):
    # Its listener looks once a second: the steps go on until it has.
    training = SmallTraining()
    with stepscope.Profiler(output_dir=tmp_path, **NEVER) as profiler:
        for number, batch in enumerate(batches(10**6)):
            if number == 3:
                ask(profiler.run_path, Trigger(steps=1))
            training.step(batch)
            profiler.step()
            if (profiler.session.rank_path / "window-0000").exists():
                break
            time.sleep(0.02)
    assert training.losses == bare_losses(number + 1)
    windows = manifest_of(tmp_path).windows
    assert [window.cause for window in windows] == ["file"]
    assert windows[0].state == "complete"
    assert windows[0].planned_steps == 1


def test_a_slow_step_asks(tmp_path, monkeypatch):
    # By a clock of the test's own: on a busy machine any step may be slow.
    now_ns = [0]

    def at(number, profiler):
        now_ns[0] += 1_000_000_000 if number == 14 else 20_000_000
        # Slow steps are looked for where steps are written: once a second.
        until = time.monotonic() + 60
        planner = profiler.session.steps.windows.planner
        while number == 15 and planner.next_due(17) > 17 and time.monotonic() < until:
            time.sleep(0.01)

    monkeypatch.setattr("stepscope.capture.steps.core.perf_counter_ns", lambda: now_ns[0])
    windows = train(tmp_path, steps=25, at=at, slow_step_factor=15.0)
    assert [window.cause for window in windows] == ["slow step"]
    assert windows[0].first_step == 17
    assert windows[0].state == "complete"


def test_a_request_may_ask_for_more_than_the_options_do(tmp_path):
    def at(number, profiler):
        if number == 2:
            profiler.trigger(steps=1, details=["with_stack", "record_shapes", "profile_memory"])
        if number == 9:
            profiler.trigger(steps=1)
        if number == 12:
            profiler.trigger(steps=1, details=["everything"])

    asked, plain = train(tmp_path, at=at, record_shapes=True)
    assert asked.details == ("profile_memory", "with_stack"), "shapes are no more than usual"
    assert plain.details == ()
    rich, usual = (trace_document(one.trace_path) for one in open_run(tmp_path).windows)
    for document, has_more in ((rich, True), (usual, False)):
        events = document["traceEvents"]
        assert any("Input Dims" in event.get("args", {}) for event in events)
        assert any(event.get("cat") == "python_function" for event in events) == has_more
        assert any(event["name"] == "[memory]" for event in events) == has_more
    assert {"stacks"} == {item.kind for item in asked.artifacts} - {
        item.kind for item in plain.artifacts
    }
    problems = manifest_of(tmp_path).problems
    assert any("details='everything': choose from" in problem.message for problem in problems)


def test_a_request_waits_for_the_window_that_is_open(tmp_path):
    def at(number, profiler):
        if number == 3:
            profiler.trigger(steps=1)

    windows = train(tmp_path, at=at, wait=1, active=3)
    assert [window.cause for window in windows] == ["schedule", "code"]
    found = [steps_in_trace(window.trace_path) for window in open_run(tmp_path).windows]
    assert found == [[2, 3, 4], [6]]


def test_requests_without_end_do_not_pile_up(tmp_path):
    def at(number, profiler):
        for _ in range(50):
            profiler.trigger(steps=1)

    assert len(train(tmp_path, steps=6, at=at)) <= 6


@pytest.mark.parametrize("options", [{"triggers": False}])
def test_triggers_can_be_switched_off(tmp_path, options):
    def at(number, profiler):
        profiler.trigger()

    assert train(tmp_path, steps=4, at=at, **options) == ()


def test_a_window_that_was_asked_for_comes_at_once_although_it_is_fitted_first(tmp_path):
    # The step that is recorded on trial leaves nothing in the queue that would wake anything.
    def at(number, profiler):
        if number == 5:
            profiler.trigger(steps=3)

    (window,) = train(tmp_path, at=at, warmup=3, max_window_bytes=1 << 40)
    assert (window.state, window.cause, window.note) == ("complete", "code", "")
    assert steps_in_trace(open_run(tmp_path).windows[0].trace_path) == [9, 10, 11]
