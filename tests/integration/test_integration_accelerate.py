"""The profiler for loops that are written with accelerate, in real trainings."""

from __future__ import annotations

import itertools

import pytest
import torch
from tests.support.entered import fewest_entered
from tests.support.frameworks import loaders, skip_without
from tests.support.launching import HEAD, two_ranks
from tests.support.runs import manifest_of, steps_in_trace

from stepscope import open_run
from stepscope.errors import UsageError

skip_without("accelerate")
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)
QUICK = {"wait": 1, "warmup": 1, "active": 2, "activities": "cpu", "triggers": False}


def prepare(accumulation):
    """An Accelerator, and what it prepares: 24 batches of 4."""
    from accelerate import Accelerator

    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 2)
    )
    optimizer = torch.optim.AdamW(model.parameters())
    return accelerator, *accelerator.prepare(model, optimizer, loaders()[0])


def train(accelerator, model, optimizer, batches):
    """One pass over the batches; the losses."""
    losses = []
    for inputs, targets in batches:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.fixture
def profiler_class():
    from stepscope.adapters.accelerate import AccelerateProfiler

    return AccelerateProfiler


@pytest.fixture(autouse=True)
def fresh_state():
    """Accelerate keeps the state of a process: each test begins without any."""
    from accelerate.state import AcceleratorState, GradientState

    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


@pytest.mark.parametrize("accumulation", [1, 5])
def test_steps_end_where_accelerate_steps(tmp_path, profiler_class, accumulation):
    accelerator, model, optimizer, loader = prepare(accumulation)
    bare = [train(accelerator, model, optimizer, loader) for _ in range(2)]
    accelerator, model, optimizer, loader = prepare(accumulation)
    with profiler_class(output_dir=tmp_path, **QUICK) as profiler:
        ours = [train(accelerator, model, optimizer, profiler.watch(loader)) for _ in range(2)]
    assert ours == bare
    (rank,) = open_run(tmp_path).ranks
    assert (rank.manifest.state, rank.manifest.step_unit) == ("finished", "optimizer step")
    # 24 batches in each epoch; the last of them steps, too.
    assert rank.manifest.steps == len(rank.steps) == 2 * -(-24 // accumulation)
    assert steps_in_trace(rank.windows[0].trace_path) == [2, 3]
    for step in rank.steps:
        assert set(step.phases) == {"forward", "backward", "optimizer"}
        assert step.data_wait_ns > 0
        assert step.data_wait_ns + sum(step.phases.values()) <= step.dur_ns


def test_micro_batches_can_be_the_steps(tmp_path, profiler_class):
    accelerator, model, optimizer, loader = prepare(5)
    with profiler_class(output_dir=tmp_path, step_unit="micro-batch", **QUICK) as profiler:
        train(accelerator, model, optimizer, profiler.watch(loader))
    (rank,) = open_run(tmp_path).ranks
    with_optimizer = [step.step for step in rank.steps if "optimizer" in step.phases]
    assert len(rank.steps) == 24
    assert with_optimizer == [4, 9, 14, 19, 23]


def test_a_loop_that_is_left_after_its_optimizer_step(tmp_path, profiler_class):
    accelerator, model, optimizer, loader = prepare(2)
    with profiler_class(output_dir=tmp_path, **QUICK) as profiler:
        for number, batch in enumerate(profiler.watch(loader), 1):
            train(accelerator, model, optimizer, [batch])
            if number == 8:
                break
    manifest = manifest_of(tmp_path)
    assert (manifest.steps, manifest.state) == (4, "finished")
    assert not any(step.is_partial for step in open_run(tmp_path).ranks[0].steps)


def test_an_evaluation_in_the_body_of_the_loop(tmp_path, profiler_class):
    accelerator, model, optimizer, loader = prepare(2)
    with profiler_class(output_dir=tmp_path, **QUICK) as profiler:
        for number, batch in enumerate(profiler.watch(loader), 1):
            train(accelerator, model, optimizer, [batch])
            if number == 10:
                profiler.step()
                with profiler.outside_steps("evaluation"), torch.no_grad():
                    model(batch[0])
    (rank,) = open_run(tmp_path).ranks
    assert rank.manifest.steps == 12
    assert [step.step for step in rank.steps if step.kind == "train"] == list(range(12))
    assert [(s.kind, s.step) for s in rank.steps if s.kind != "train"] == [("evaluation", 5)]


def test_max_steps_and_an_error(tmp_path, profiler_class):
    accelerator, model, optimizer, loader = prepare(2)
    with profiler_class(output_dir=tmp_path / "a", max_steps=6, **QUICK) as profiler:
        assert len(train(accelerator, model, optimizer, profiler.watch(loader))) == 12
    with (
        pytest.raises(ZeroDivisionError),
        profiler_class(output_dir=tmp_path / "b", **QUICK) as profiler,
    ):
        for number, batch in enumerate(profiler.watch(loader)):
            train(accelerator, model, optimizer, [batch])
            1 / (4 - number)
    manifest = manifest_of(tmp_path / "b")
    assert manifest.state == "failed"
    assert manifest.ended.startswith("ZeroDivisionError in step 2")
    assert torch.autograd.backward.__module__ == "torch.autograd"


def test_the_accelerator_comes_first(tmp_path, profiler_class):
    with pytest.raises(UsageError, match="create the Accelerator before"):
        profiler_class(output_dir=tmp_path)
    profiler_class(output_dir=tmp_path, enabled=False)


def test_the_rank_is_what_accelerate_says(tmp_path, monkeypatch, profiler_class):
    # A shell of a scheduler's job, in which one process runs by itself.
    monkeypatch.setenv("SLURM_PROCID", "3")
    monkeypatch.setenv("SLURM_NTASKS", "8")
    accelerator, model, optimizer, loader = prepare(1)
    with profiler_class(output_dir=tmp_path, **QUICK) as profiler:
        train(accelerator, model, optimizer, profiler.watch(loader))
    run = open_run(tmp_path)
    assert [rank.rank for rank in run.ranks] == [0]
    assert run.job.world_size == 1


def test_two_ranks_of_which_one_records(tmp_path):
    script = (
        HEAD
        + """
from tests.integration.test_integration_accelerate import QUICK, prepare, train
from stepscope.adapters.accelerate import AccelerateProfiler

accelerator, model, optimizer, loader = prepare(2)
with AccelerateProfiler(output_dir="profiles", ranks="0", **QUICK) as profiler:
    train(accelerator, model, optimizer, profiler.watch(loader))
accelerator.end_training()
"""
    )
    run = two_ranks(tmp_path, script)
    assert [rank.manifest.steps for rank in run.ranks] == [6, 6]
    assert [len(rank.windows) for rank in run.ranks] == [1, 0]


def test_a_batch_enters_one_generator_and_the_ends_of_its_step_and_wait(profiler_class, tmp_path):
    """Each further function costs every step of a training microseconds."""
    prepare(1)
    with profiler_class(output_dir=tmp_path, window_recorder="none") as profiler:
        batches = profiler.watch(itertools.repeat(torch.zeros(4, 8)))
        # A batch in which the system took the thread off its CPU reads its clocks again.
        entered = fewest_entered(lambda: next(batches))
    assert entered == [
        *("_begin_step", "_is_count", "_is_count", "_rows_of", "_watch", "begin_own_fetch"),
        *("begin_wait", "end_own_fetch", "end_step", "end_usual_step", "end_wait", "ends_step"),
        *("note", "offer", "put", "work_of"),
    ]
    assert open_run(tmp_path).ranks[0].steps[60].samples == 4
