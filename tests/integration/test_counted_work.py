"""Samples and tokens of each step, as the integrations count them, against what was used."""

from __future__ import annotations

import importlib
import importlib.util
import warnings

import pytest
import torch
from tests.support.frameworks import Samples, fit, trainer_of

import stepscope
from stepscope import open_run

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)
OPTIONS = {"wait": 50, "activities": "cpu", "triggers": False}


def steps_of(folder, rank=0):
    """The whole steps: after the last one, a line that is none has a loss that was logged then."""
    return [step for step in open_run(folder).ranks[rank].steps if step.is_whole_step]


def needs(*packages):
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")


class Used:
    """How much each forward pass of a training has in it."""

    def __init__(self, model, name):
        self.shapes = []
        model.register_forward_pre_hook(self._see, with_kwargs=True)
        self._name = name

    def _see(self, model, arguments, keywords):
        if model.training:
            self.shapes.append(tuple(keywords[self._name].shape))

    def by_step(self, sizes):
        """Their products, in groups of the steps' numbers of micro-batches."""
        shapes = iter(self.shapes)
        groups = [[next(shapes) for _ in range(size)] for size in sizes]
        assert next(shapes, None) is None
        return groups


@pytest.mark.parametrize("workers", [0, 1])
def test_the_trainer_of_transformers(tmp_path, workers):
    needs("transformers", "accelerate")
    from stepscope.adapters.transformers import StepscopeCallback

    options = {
        "gradient_accumulation_steps": 2,
        "num_train_epochs": 2,
        "eval_strategy": "steps",
        "eval_steps": 3,
        "dataloader_num_workers": workers,
    }
    callback = StepscopeCallback(output_dir=tmp_path / "profiles", **OPTIONS)
    # 30 samples in batches of 4 are seven and a half: the last one of an epoch has 2.
    trainer = trainer_of(tmp_path, [callback], samples=30, **options)
    used = Used(trainer.model, "x")
    trainer.train()
    wanted = [sum(shape[0] for shape in group) for group in used.by_step([2] * 8)]
    assert wanted.count(6) == 2
    steps = steps_of(tmp_path / "profiles")
    assert [(step.samples, step.tokens) for step in steps] == [(rows, None) for rows in wanted]


def test_a_training_of_transformers_that_goes_on_from_a_checkpoint(tmp_path):
    needs("transformers", "accelerate")
    from stepscope.adapters.transformers import StepscopeCallback

    options = {"save_strategy": "steps", "save_steps": 6, "num_train_epochs": 1}
    trainer_of(tmp_path, samples=30, **options, max_steps=6).train()
    callback = StepscopeCallback(output_dir=tmp_path / "profiles", **OPTIONS)
    trainer = trainer_of(tmp_path, [callback], samples=30, **options)
    used = Used(trainer.model, "x")
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    steps = steps_of(tmp_path / "profiles")
    assert [step.samples for step in steps] == [shape[0] for shape in used.shapes] == [4, 2]


def test_tokens_of_trl(tmp_path):
    needs("transformers", "trl", "datasets")
    from tests.integration.test_integration_trl import trainer_of as tuner_of

    from stepscope.adapters.transformers import StepscopeCallback

    callback = StepscopeCallback(output_dir=tmp_path / "profiles", **OPTIONS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = tuner_of(tmp_path, [callback])
        used = Used(trainer.model, "input_ids")
        trainer.train()
    groups = used.by_step([2] * 6)
    steps = steps_of(tmp_path / "profiles")
    assert [step.tokens for step in steps] == [sum(r * n for r, n in group) for group in groups]
    assert [step.samples for step in steps] == [sum(r for r, _ in group) for group in groups]


@pytest.mark.parametrize("package", ["lightning", "pytorch_lightning"])
def test_the_callback_of_lightning(tmp_path, package):
    needs(package)
    door = importlib.import_module(f"stepscope.adapters.{package}")
    callback = door.StepscopeCallback(output_dir=tmp_path, **OPTIONS)
    trainer, _ = fit(package, callbacks=[callback], max_epochs=1)
    assert trainer.global_step == 12
    steps = steps_of(tmp_path)
    assert [(step.samples, step.tokens) for step in steps] == [(8, None)] * 12


def test_a_loop_with_accelerate(tmp_path):
    needs("accelerate")
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    from stepscope.adapters.accelerate import AccelerateProfiler

    try:
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        model = torch.nn.Linear(8, 2)
        optimizer = torch.optim.SGD(model.parameters())
        loader = torch.utils.data.DataLoader(Samples(30), batch_size=4)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        with AccelerateProfiler(output_dir=tmp_path, **OPTIONS) as profiler:
            for epoch in range(3):
                for number, batch in enumerate(profiler.watch(loader)):
                    with accelerator.accumulate(model):
                        accelerator.backward(model(batch["x"]).square().mean())
                        optimizer.step()
                        optimizer.zero_grad()
                    if epoch == 0 and number == 2:
                        break  # in the middle of an accumulation
                    if epoch == 2:
                        profiler.count(samples=1)  # the loop's own number holds
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
    steps = steps_of(tmp_path)
    # Accelerate goes on with the accumulation that the first loop has left.
    assert [step.samples for step in steps] == [8, *(4, 8, 8, 8, 2), *(2, 2, 2, 2)]


def test_the_loops_own_number_holds(tmp_path):
    with stepscope.Profiler(output_dir=tmp_path, **OPTIONS) as profiler:
        profiler.session.steps.offer((4, 40))
        profiler.step()
        profiler.session.steps.offer((4, 40))
        profiler.session.steps.offer((4, None))
        profiler.count(samples=3)
        profiler.step()
        profiler.session.steps.offer((4, 40))
        profiler.step(tokens=7)
        profiler.session.steps.offer((4, 40))
        profiler.session.restart_step()
        profiler.step()
    steps = [(step.samples, step.tokens) for step in steps_of(tmp_path)]
    assert steps == [(4, 40), (3, None), (4, 7), (None, None)]
