"""The FLOPs of one step, against what the matrices of the step cost on paper."""

from __future__ import annotations

import re

import pytest
import torch
from tests.support.runs import manifest_of, rank_directory
from tests.support.training import SmallTraining, bare_losses, batches
from torch.utils._python_dispatch import TorchDispatchMode

from stepscope import Profiler, open_run
from stepscope.capture.steps.flop_counter import FlopCount, short, table_of

FORWARD = 2 * 8 * 16 * 32 + 2 * 8 * 32 * 4
BACKWARD = 2 * 16 * 8 * 32 + 2 * 32 * 8 * 4 + 2 * 8 * 4 * 32
"""The weights' gradients, and that of what the first layer gives to the second."""


def train(profiler, steps):
    training = SmallTraining()
    for batch in profiler.watch(batches(steps)):
        training.step(batch)
    return training.losses


def text_of(folder):
    return (rank_directory(folder) / "flop_counter.txt").read_text()


def test_the_count_is_that_of_the_step_and_changes_nothing(tmp_path):
    with Profiler(output_dir=tmp_path, flop_counter=True) as profiler:
        losses = train(profiler, 12)
    assert losses == bare_losses(12)
    text = text_of(tmp_path)
    assert text.startswith("Floating-point operations of step 1,")
    assert f"Total: {FORWARD + BACKWARD} (" in text
    parts = [int(count) for count in re.findall(r"^aten\.\w+ +(\d+)", text, re.MULTILINE)]
    assert sum(parts) == FORWARD + BACKWARD
    (artifact,) = manifest_of(tmp_path).artifacts
    assert (artifact.kind, artifact.path) == ("flop_counter", "flop_counter.txt")
    assert artifact.bytes == len(text.encode())
    steps = open_run(tmp_path).ranks[0].steps
    assert [step.step for step in steps if step.kind != "train"] == [1]
    assert steps[1].kind == "flop counter"


def train_compiled(profiler, fullgraph, steps=5):
    """In which steps the compiled graph ran."""
    ran = []
    step = 0

    def backend(graph, _examples):
        def run(*given):
            ran.append(step)
            return graph(*given)

        return run

    torch._dynamo.reset()
    compiled = torch.compile(torch.nn.Linear(16, 4), backend=backend, fullgraph=fullgraph)
    while step < steps:
        compiled(torch.ones(8, 16)).sum().backward()
        profiler.step()
        step += 1
    return ran


@pytest.mark.filterwarnings("ignore:Using `torch.compile.module.` when there are global hooks")
@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("step", [0, 2])
def test_what_was_compiled_runs_on_after_the_step(tmp_path, fullgraph, step):
    if not hasattr(torch.compiler, "set_stance"):
        pytest.skip("this torch cannot leave torch.compile out for one step")
    options = {"flop_counter": True, "flop_counter_step": step, "window_recorder": "none"}
    with Profiler(output_dir=tmp_path, **options) as profiler:
        ran = train_compiled(profiler, fullgraph)
    assert ran == [one for one in range(5) if one != step]
    assert f"Total: {2 * 2 * 8 * 16 * 4} (" in text_of(tmp_path)
    assert manifest_of(tmp_path).problems == ()


def test_without_the_switch_a_compiled_training_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.delattr(torch.compiler, "set_stance", raising=False)
    options = {"flop_counter": True, "flop_counter_step": 2, "window_recorder": "none"}
    with Profiler(output_dir=tmp_path, **options) as profiler:
        assert train_compiled(profiler, fullgraph=True) == [0, 1, 2, 3, 4]
    assert not (rank_directory(tmp_path) / "flop_counter.txt").exists()
    (problem,) = manifest_of(tmp_path).problems
    assert "operations were not counted: torch.compile is in use" in problem.message


def test_modules_are_listed_with_what_is_inside_them(tmp_path):
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(32, 4))
    )
    with Profiler(output_dir=tmp_path, flop_counter=True, flop_counter_step=2) as profiler:
        for _ in range(4):
            model(torch.ones(8, 16)).sum().backward()
            profiler.step()
    rows = re.findall(r"^( *)([\w.]+) +(\d+) +([\d.]+)%$", text_of(tmp_path), re.MULTILINE)
    modules = {name: int(count) for _, name, count, _ in rows if name.startswith("Sequential")}
    assert modules["Sequential.0"] + modules["Sequential.1"] == modules["Sequential"]
    assert modules["Sequential.1"] == modules["Sequential.1.1"] == 3 * 2 * 8 * 32 * 4
    assert list(modules) == ["Sequential", "Sequential.0", "Sequential.1", "Sequential.1.1"]


@pytest.mark.parametrize(
    ("options", "step"),
    [
        ({}, 1),
        ({"wait": 1, "warmup": 1, "active": 5, "repeat": 0}, 7),
        ({"wait": 0, "warmup": 0, "active": 3, "repeat": 1}, 3),
        ({"wait": 0, "warmup": 1, "active": 1, "repeat": 0}, 1),
        ({"flop_counter_step": 9}, 9),
    ],
)
def test_a_step_that_no_window_records_is_chosen(options, step):
    assert Profiler(flop_counter=True, **options).config.detail_step == step


def test_a_step_that_never_comes_is_told(tmp_path):
    with Profiler(output_dir=tmp_path, flop_counter=True, flop_counter_step=40) as profiler:
        train(profiler, 4)
    (problem,) = manifest_of(tmp_path).problems
    assert "before the end of step 40" in problem.message


def test_ranks_that_do_not_record_count_nothing(tmp_path):
    with Profiler(output_dir=tmp_path, flop_counter=True, ranks=[3]) as profiler:
        train(profiler, 4)
    assert manifest_of(tmp_path).artifacts == ()


def test_an_error_in_the_counted_step_leaves_nothing_behind(tmp_path):
    with (
        pytest.raises(ValueError, match="theirs"),
        Profiler(output_dir=tmp_path, flop_counter=True) as profiler,
    ):
        for number, batch in enumerate(profiler.watch(batches(5))):
            SmallTraining().step(batch)
            if number == 1:
                raise ValueError("theirs")
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
    assert not (rank_directory(tmp_path) / "flop_counter.txt").exists()


class Passing(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_a_mode_of_the_trainings_own_is_not_taken_away():
    texts = []
    count = FlopCount(0, texts.append)
    count.step_begins(0)
    torch.ones(2, 3) @ torch.ones(3, 4)
    theirs = Passing()
    theirs.__enter__()
    assert not count.step_ended(0)
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is theirs
    torch.ones(2, 3) @ torch.ones(3, 4)
    theirs.__exit__(None, None, None)
    assert count.step_ended(1)
    assert not count.is_counting
    (text,) = texts
    assert "Total: 48 (48 FLOP)" in text
    assert "before the end of step 1" in text


def test_a_counter_that_is_a_mode_itself_is_left_too(monkeypatch):
    # As in torch 2.4; since then it has one.
    class Counter(TorchDispatchMode):
        def __init__(self, display):
            super().__init__()

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

        def get_flop_counts(self):
            return {"Global": {"aten.mm": 48}}

    monkeypatch.setattr("torch.utils.flop_counter.FlopCounterMode", Counter)
    texts = []
    count = FlopCount(0, texts.append)
    count.step_begins(0)
    assert count.step_ended(0)
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
    assert "Total: 48" in texts[0]


def test_a_step_without_any_operation_that_is_known():
    assert "Total: 0 (0 FLOP)" in table_of({}, 4)
    assert short(1_500) == "1.5 kFLOP"
    assert short(3 * 10**18) == "3000 PFLOP"
