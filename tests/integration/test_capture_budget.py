"""Windows made to fit: the pause, the size, and the share of the disk."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tests.support.runs import manifest_of, rank_directory, steps_in_trace
from tests.support.training import SmallTraining, bare_losses, batches

import stepscope
from stepscope import open_run
from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.windows.planner import Budget, StepSample, WindowPlan
from stepscope.run.layout import RankLayout
from stepscope.run.manifest import ArtifactRecord, WindowRecord

QUICK = {"wait": 1, "warmup": 1, "active": 4, "repeat": 1, "activities": "cpu"}


def train(output, steps=9, **options):
    training = SmallTraining()
    with stepscope.Profiler(output_dir=output, **{**QUICK, **options}) as profiler:
        for batch in batches(steps):
            training.step(batch)
            profiler.step()
    return training.losses


def plan(tmp_path, steps=4, with_stack=False):
    return WindowPlan(0, 10, steps, tmp_path, with_stack=with_stack)


def test_a_window_is_shrunk_to_the_bytes_it_may_have(tmp_path):
    train(tmp_path / "free")
    free = manifest_of(tmp_path / "free").windows[0]
    per_step = free.raw_bytes / 4
    limit = round(2.6 * per_step)
    assert train(tmp_path / "tight", max_window_bytes=limit) == bare_losses(9)
    tight = manifest_of(tmp_path / "tight").windows[0]
    assert tight.state == "complete"
    assert tight.planned_steps in {1, 2}
    assert tight.raw_bytes <= limit
    assert f"{tight.planned_steps} of 4 steps recorded" in tight.note
    assert "max_window_bytes" in tight.note
    assert tight.predicted_pause_ns > 0
    found = steps_in_trace(open_run(tmp_path / "tight").windows[0].trace_path)
    assert found == [2, 3][: tight.planned_steps]


def test_a_window_that_fits_is_left_whole(tmp_path):
    assert train(tmp_path, max_window_bytes=1 << 40, max_pause_s=3600) == bare_losses(9)
    window = manifest_of(tmp_path).windows[0]
    assert (window.planned_steps, window.note) == (4, "")
    assert steps_in_trace(open_run(tmp_path).windows[0].trace_path) == [2, 3, 4, 5]


def test_stacks_are_dropped_where_one_step_is_too_much(tmp_path):
    assert train(tmp_path, with_stack=True, max_window_bytes=1000) == bare_losses(9)
    window = manifest_of(tmp_path).windows[0]
    assert "Python stacks left out, 1 of 4 steps recorded" in window.note
    assert "stacks" not in {item.kind for item in window.artifacts}
    assert window.state == "complete"


@pytest.mark.parametrize(
    ("pause_s", "size", "max_pause_s", "max_bytes", "expected"),
    [
        (0.1, 10, None, None, 4),
        (0.1, 10, 0.35, None, 3),
        (0.1, 10, 0.05, None, 1),
        (0.1, 10, None, 25, 2),
        (0.1, 10, 0.35, 15, 1),
        (0.0, 0, 0.35, 15, 4),
    ],
)
def test_arithmetic_of_the_limits(tmp_path, pause_s, size, max_pause_s, max_bytes, expected):
    config = CaptureConfig(max_pause_s=max_pause_s, max_window_bytes=max_bytes)
    budget = Budget(config, RankLayout(tmp_path))
    assert budget.fit(plan(tmp_path)).steps == 4
    budget.learn(StepSample(pause_s * 1e9, size))
    assert budget.fit(plan(tmp_path)).steps == expected


def test_stacks_go_only_where_steps_alone_do_not_do(tmp_path):
    budget = Budget(CaptureConfig(max_pause_s=0.3), RankLayout(tmp_path))
    budget.learn(StepSample(0.1e9, 10, stack_share=0.8))
    fitted = budget.fit(plan(tmp_path, with_stack=True))
    assert (fitted.steps, fitted.with_stack) == (3, True)
    budget.learn(StepSample(0.4e9, 10, stack_share=0.8))
    fitted = budget.fit(plan(tmp_path, with_stack=True))
    assert (fitted.steps, fitted.with_stack) == (3, False)


def test_each_kind_of_window_has_its_own_cost(tmp_path):
    budget = Budget(CaptureConfig(max_pause_s=0.3), RankLayout(tmp_path))
    rich = dataclasses.replace(
        plan(tmp_path, with_stack=True), details=("record_shapes", "with_stack")
    )
    budget.learn(StepSample(0.01e9, 10))
    assert budget.predicted_pause_ns(plan(tmp_path)) == 40_000_000
    assert budget.predicted_pause_ns(rich) is None, "what cheaper windows cost tells nothing"
    assert budget.fit(rich) == rich
    budget.learn(StepSample(0.5e9, 10, stack_share=0.8), rich.details)
    fitted = budget.fit(rich)
    assert (fitted.steps, fitted.with_stack, fitted.details) == (3, False, ("record_shapes",))
    assert budget.fit(plan(tmp_path)).steps == 4


def test_only_the_newest_windows_are_kept(tmp_path):
    train(tmp_path, steps=20, wait=0, active=1, repeat=0, keep_windows=2)
    records = manifest_of(tmp_path).windows
    kept = [record.index for record in records if record.state == "complete"]
    assert len(kept) == 2
    removed = [record for record in records if record.state == "removed"]
    assert len(removed) >= 6
    assert "keep_windows=2" in removed[0].reason
    folders = {path.name for path in rank_directory(tmp_path).glob("window-*")}
    assert folders == {f"window-{index:04d}" for index in kept}
    assert [window.index for window in open_run(tmp_path).windows if window.trace_path] == kept


def test_the_files_of_the_oldest_windows_are_removed(tmp_path):
    config = CaptureConfig(keep_windows=2)
    layout = RankLayout(tmp_path)
    records = []
    for index in range(5):
        layout.window(index).mkdir()
        records.append(
            WindowRecord(index, "complete", artifacts=(ArtifactRecord("trace", "x", 100),))
        )
    removed = Budget(config, layout).prune(tuple(records))
    assert [record.index for record in removed] == [0, 1, 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["window-0003", "window-0004"]
    assert Budget(config, layout).prune(tuple(records[-2:])) == []
    assert Budget(CaptureConfig(), layout).prune(tuple(records)) == []


def test_a_trial_that_the_loop_cuts_off_is_told(tmp_path):
    assert train(tmp_path, steps=1, max_pause_s=1.0) == bare_losses(1)
    assert manifest_of(tmp_path).windows[0].state == "abandoned"
    assert not torch.autograd._profiler_enabled()
