"""The callback and the profiler for Lightning's Trainer, in real trainings of both packages."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import sys
import time

import pytest
import torch
from tests.support.frameworks import fit, lightning_model, pytorch_of
from tests.support.launching import HEAD, two_ranks
from tests.support.runs import manifest_of, steps_in_trace

import stepscope
from stepscope import open_run

PACKAGES = [
    name
    for name in ("lightning", "pytorch_lightning")
    if importlib.util.find_spec(name) is not None
]
if not PACKAGES:
    pytest.skip("Lightning is not installed", allow_module_level=True)
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)

QUICK = {"wait": 1, "warmup": 1, "active": 6, "activities": "cpu", "triggers": False}
DOORS = ("callback", "profiler")
each_package = pytest.mark.parametrize("package", PACKAGES)
each_door = pytest.mark.parametrize("door", DOORS)


def door_of(package, door, **options):
    """What is given to the Trainer, as a keyword, and by itself."""
    module = importlib.import_module(f"stepscope.adapters.{package}")
    made = {"callback": module.StepscopeCallback, "profiler": module.StepscopeProfiler}[door](
        **options
    )
    return {"callbacks": [made]} if door == "callback" else {"profiler": made}, made


def lines_of(output):
    steps = open_run(output).ranks[0].steps
    return [s for s in steps if s.kind == "train"], [s for s in steps if s.kind != "train"]


@each_package
@each_door
def test_steps_are_optimizer_steps_and_what_lies_between_is_none(tmp_path, package, door):
    options = {
        "val_check_interval": 10,
        "enable_checkpointing": True,
        "default_root_dir": str(tmp_path / "root"),
    }
    _, bare = fit(package, **options)
    given, made = door_of(package, door, output_dir=tmp_path / "profiles", **QUICK)
    trainer, model = fit(package, **options, **given)
    assert model.losses == bare.losses
    for one, other in zip(model.parameters(), bare.parameters(), strict=True):
        assert torch.equal(one, other)
    manifest = manifest_of(tmp_path / "profiles")
    assert (manifest.state, manifest.step_unit) == ("finished", "optimizer step")
    assert manifest.steps == trainer.global_step == 24
    assert manifest.problems == ()
    steps, others = lines_of(tmp_path / "profiles")
    assert [step.step for step in steps] == list(range(24))
    for step in steps:
        hooks = {"[Callback]ModelCheckpoint.on_train_batch_end"} if door == "profiler" else set()
        assert set(step.phases) - hooks == {"forward", "backward", "optimizer"}
        assert step.data_wait_ns > 0
        assert step.data_wait_ns + sum(step.phases.values()) <= step.dur_ns
    # Validated after batches 10 and 20 of each epoch, and saved with it.
    wanted = [(kind, number) for number in (5, 10, 17, 22) for kind in ("evaluation", "checkpoint")]
    assert [(line.kind, line.step) for line in others] == wanted
    spans = sorted((s.start_ns, s.start_ns + s.dur_ns) for s in (*steps, *others))
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))
    # The window spans an evaluation and a checkpoint: its steps do not.
    window = open_run(tmp_path / "profiles").windows[0]
    assert steps_in_trace(window.trace_path) == [2, 3, 4, 5, 6, 7]
    trace = stepscope.load(window.trace_path)
    ends = trace.steps["end_ns"].to_list()
    starts = trace.steps["start_ns"].to_list()
    assert [n for n in range(5) if ends[n] != starts[n + 1]] == [2]
    names = set(trace.names.collect()["name"])
    hook = "[Callback]ModelCheckpoint.on_train_batch_end"
    assert (hook in names) == (door == "profiler")
    assert made.run_path == window.trace_path.parents[2]


@each_door
def test_the_loss_that_a_logger_gets_is_with_the_step_after_it(tmp_path, door):
    package = PACKAGES[0]
    model = lightning_model(package)
    train = model.training_step

    def training_step(batch, batch_idx):
        loss = train(batch, batch_idx)
        model.log("train_loss", loss)
        return loss

    model.training_step = training_step
    logger = pytorch_of(package).loggers.CSVLogger(tmp_path)
    given, _ = door_of(package, door, output_dir=tmp_path / "profiles", **QUICK)
    fit(package, model, logger=logger, log_every_n_steps=5, **given)  # its validations log a loss
    steps, _ = lines_of(tmp_path / "profiles")
    wanted = {at + 1: model.losses[2 * at + 1] for at in (4, 9, 14, 19)}
    found = {step.step: step.loss for step in steps if step.loss is not None}
    assert found == pytest.approx(wanted)
    assert "log_metrics" not in vars(logger)


@each_door
def test_a_validation_in_the_middle_of_a_step_is_a_phase_of_it(tmp_path, door):
    given, _ = door_of(PACKAGES[0], door, output_dir=tmp_path / "profiles", **QUICK)
    fit(PACKAGES[0], val_check_interval=5, **given)
    steps, others = lines_of(tmp_path / "profiles")
    assert [step.step for step in steps] == list(range(24))
    # After batches 5 and 15 of each epoch, which are the first of their step.
    assert [step.step for step in steps if "evaluation" in step.phases] == [2, 7, 14, 19]
    assert [(line.kind, line.step) for line in others] == [
        ("evaluation", step) for step in (5, 10, 17, 22)
    ]
    assert all(step.data_wait_ns + sum(step.phases.values()) <= step.dur_ns for step in steps)


@each_package
def test_the_profiler_times_hooks_that_do_something(tmp_path, package):
    spent_s = dict.fromkeys(("on_train_batch_start", "on_after_backward", "on_train_batch_end"), 0)

    class Busy(pytorch_of(package).Callback):
        def work(self, hook):
            begun_s = time.perf_counter()
            time.sleep(0.004)
            spent_s[hook] += time.perf_counter() - begun_s

        def on_train_batch_start(self, *_):
            self.work("on_train_batch_start")

        def on_after_backward(self, *_):
            self.work("on_after_backward")

        def on_train_batch_end(self, *_):
            self.work("on_train_batch_end")

    class Empty(pytorch_of(package).Callback):
        pass

    given, _ = door_of(package, "profiler", output_dir=tmp_path / "profiles", **QUICK)
    fit(package, callbacks=[Busy(), Empty()], **given)
    steps, _ = lines_of(tmp_path / "profiles")
    names = {f"[Callback]{Busy.__qualname__}.{hook}": hook for hook in spent_s}
    found = {name for step in steps for name in step.phases}
    assert found == {"forward", "backward", "optimizer", *names}
    for name, hook in names.items():
        # The end of the last batch comes after the last step.
        timed_s = sum(step.phases.get(name, 0) for step in steps) / 1e9
        assert 0.9 * spent_s[hook] <= timed_s <= 1.1 * spent_s[hook], hook
    assert all(step.data_wait_ns + sum(step.phases.values()) <= step.dur_ns for step in steps)


@each_door
def test_micro_batches_can_be_the_steps(tmp_path, door):
    given, _ = door_of(
        PACKAGES[0], door, output_dir=tmp_path / "profiles", step_unit="micro-batch", **QUICK
    )
    trainer, _ = fit(PACKAGES[0], max_epochs=1, accumulate_grad_batches=5, **given)
    assert trainer.global_step == 5
    manifest = manifest_of(tmp_path / "profiles")
    assert manifest.step_unit == "micro-batch"
    steps, _ = lines_of(tmp_path / "profiles")
    assert len(steps) == manifest.steps == 24
    with_optimizer = [step.step for step in steps if "optimizer" in step.phases]
    # Its update ends five micro-batches, or an epoch; `zero_grad` begins the next five.
    assert with_optimizer == [0, 4, 5, 9, 10, 14, 15, 19, 20, 23]


@each_door
def test_an_error_ends_the_run_as_what_it_is(tmp_path, door):
    given, made = door_of(PACKAGES[0], door, output_dir=tmp_path / "profiles", **QUICK)
    model = lightning_model(PACKAGES[0])

    class Failing(type(model)):
        def training_step(self, batch, index):
            if index == 9:
                raise ValueError("planted")
            return super().training_step(batch, index)

    model.__class__ = Failing
    # What is being handled around the training is no error of the training.
    try:
        raise KeyError("before")
    except KeyError:
        with pytest.raises(ValueError, match="planted"):
            fit(PACKAGES[0], model, **given)
    manifest = manifest_of(tmp_path / "profiles")
    assert manifest.state == "failed"
    assert manifest.ended.startswith("ValueError in step 4: planted")
    first = made.run_path
    # The same callback or profiler serves the next training.
    trainer, _ = fit(PACKAGES[0], max_epochs=1, **given)
    assert made.run_path != first
    assert manifest_of(made.run_path).state == "finished"
    assert manifest_of(made.run_path).steps == trainer.global_step == 12
    assert sys.excepthook is sys.__excepthook__ or "stepscope" not in repr(sys.excepthook)


@each_door
def test_max_steps_ends_the_training(tmp_path, door):
    given, _ = door_of(PACKAGES[0], door, output_dir=tmp_path / "profiles", max_steps=9, **QUICK)
    trainer, _ = fit(PACKAGES[0], **given)
    assert trainer.global_step == 9
    assert manifest_of(tmp_path / "profiles").steps == 9


@each_door
def test_a_resumed_training_begins_to_count_anew(tmp_path, door):
    trainer, _ = fit(PACKAGES[0], max_epochs=1)
    trainer.save_checkpoint(tmp_path / "after.ckpt")
    _, whole = fit(PACKAGES[0], ckpt_path=str(tmp_path / "after.ckpt"))
    given, _ = door_of(PACKAGES[0], door, output_dir=tmp_path / "profiles", **QUICK)
    trainer, model = fit(PACKAGES[0], ckpt_path=str(tmp_path / "after.ckpt"), **given)
    assert trainer.global_step == 24
    assert model.losses == whole.losses
    steps, _ = lines_of(tmp_path / "profiles")
    assert [step.step for step in steps] == list(range(12))


@each_door
def test_two_optimizers_of_one_batch_make_one_step(tmp_path, door):
    from torch import nn

    class Pair(pytorch_of(PACKAGES[0]).LightningModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.left, self.right = nn.Linear(8, 2), nn.Linear(8, 2)

        def training_step(self, batch, index):
            for part, optimizer in zip((self.left, self.right), self.optimizers(), strict=True):
                loss = (part(batch[0]) - batch[1]).square().mean()
                optimizer.zero_grad()
                self.manual_backward(loss)
                optimizer.step()

        def configure_optimizers(self):
            return [torch.optim.SGD(p.parameters(), lr=0.1) for p in (self.left, self.right)]

    given, _ = door_of(PACKAGES[0], door, output_dir=tmp_path / "profiles", **QUICK)
    trainer, _ = fit(PACKAGES[0], Pair(), max_epochs=1, accumulate_grad_batches=1, **given)
    assert trainer.global_step == 48
    steps, _ = lines_of(tmp_path / "profiles")
    assert len(steps) == 24
    assert all({"backward", "optimizer"} <= set(step.phases) for step in steps)


@pytest.mark.parametrize("door", ["callback", pytest.param("profiler", marks=pytest.mark.slow)])
def test_two_ranks_of_torchrun(tmp_path, door):
    script = (
        HEAD
        + f"""
from tests.integration.test_integration_lightning import QUICK, door_of
from tests.support.frameworks import fit

given, _ = door_of("{PACKAGES[0]}", "{door}", output_dir="profiles", ranks="1", **QUICK)
fit("{PACKAGES[0]}", devices=2, strategy="ddp", val_check_interval=6, **given)
torch.distributed.destroy_process_group()
"""
    )
    run = two_ranks(tmp_path, script)
    assert [rank.manifest.steps for rank in run.ranks] == [12, 12]
    assert [len(rank.windows) for rank in run.ranks] == [0, 1]
    for rank in run.ranks:
        assert [line.step for line in rank.steps if line.kind == "evaluation"] == [3, 6, 9, 12]


def test_the_profiler_times_the_wait_for_any_iterable(tmp_path):
    given, _ = door_of(PACKAGES[0], "profiler", output_dir=tmp_path / "profiles", **QUICK)

    class Batches:
        def __iter__(self):
            return iter([(torch.ones(4, 8), torch.ones(4, 2))] * 12)

    trainer = pytorch_of(PACKAGES[0]).Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **given,
    )
    trainer.fit(lightning_model(PACKAGES[0]), Batches())
    steps, _ = lines_of(tmp_path / "profiles")
    assert len(steps) == 12
    assert all(step.data_wait_ns for step in steps)
