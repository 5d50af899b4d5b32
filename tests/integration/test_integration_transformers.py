"""The callback for the Trainer of transformers, in real trainings."""

from __future__ import annotations

import argparse
import json
import sys
import time

import polars as pl
import pytest
import torch
from tests.support.frameworks import Samples, skip_without, trainer_of
from tests.support.launching import HEAD, paths_of_this_process, plainly, recorded, two_ranks
from tests.support.runs import manifest_of, steps_in_trace

import stepscope
from stepscope import open_run
from stepscope.errors import UsageError

skip_without("transformers", "accelerate")
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)

QUICK = {"wait": 1, "warmup": 1, "active": 2, "activities": "cpu", "triggers": False}


@pytest.fixture
def callback_class():
    from stepscope.adapters.transformers import StepscopeCallback

    return StepscopeCallback


def losses(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def weights(trainer):
    return [parameter.detach().clone() for parameter in trainer.model.parameters()]


def same(left, right):
    return all(torch.equal(one, other) for one, other in zip(left, right, strict=True))


def lines_of(output, rank=0):
    """The step record: the steps, and what stands beside them.

    The Trainer logs a loss after the last step too, which a line that is no whole step keeps.
    """
    steps = [one for one in open_run(output).ranks[rank].steps if not one.is_partial]
    return [s for s in steps if s.kind == "train"], [s for s in steps if s.kind != "train"]


@pytest.fixture(autouse=True)
def pythons_own_hook(monkeypatch):
    """torch.distributed leaves a hook of its own behind, where an earlier test has used it."""
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)


def torch_is_as_before():
    from torch import autograd
    from torch.optim import optimizer
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    return (
        autograd.backward.__module__ == "torch.autograd"
        and _BaseDataLoaderIter.__next__.__qualname__ == "_BaseDataLoaderIter.__next__"
        and not hasattr(_BaseDataLoaderIter.__next__, "__wrapped__")
        and not optimizer._global_optimizer_pre_hooks
        and not optimizer._global_optimizer_post_hooks
        and sys.excepthook is sys.__excepthook__
    )


class Moments:
    """When evaluations and checkpoints were made, by the clock that steps are timed with."""

    def __init__(self, trainer):
        self.seen = {"evaluation": [], "checkpoint": []}
        self._wrap(trainer, "prediction_step", "evaluation")
        self._wrap(trainer, "_save", "checkpoint")

    def _wrap(self, trainer, name, kind):
        original = getattr(trainer, name)

        def noted(*arguments, **keywords):
            begun = time.perf_counter_ns()
            result = original(*arguments, **keywords)
            self.seen[kind].append((begun, time.perf_counter_ns()))
            return result

        setattr(trainer, name, noted)

    @staticmethod
    def meets(line, moment, manifest):
        start_ns = line.start_ns - manifest.clock_epoch_ns + manifest.clock_monotonic_ns
        return start_ns < moment[1] and moment[0] < start_ns + line.dur_ns


def test_steps_are_optimizer_steps_and_what_lies_between_is_none(tmp_path, callback_class):
    options = {
        "max_steps": 12,
        "gradient_accumulation_steps": 2,
        "eval_strategy": "steps",
        "eval_steps": 5,
        "save_strategy": "steps",
        "save_steps": 5,
    }
    bare = trainer_of(tmp_path / "bare", **options)
    bare.train()
    callback = callback_class(output_dir=tmp_path / "profiles", active=5, wait=1, warmup=1)
    trainer = trainer_of(tmp_path / "ours", [callback], **options)
    moments = Moments(trainer)
    trainer.train()
    assert losses(trainer) == losses(bare)
    assert same(weights(trainer), weights(bare))
    assert torch_is_as_before()

    manifest = manifest_of(tmp_path / "profiles")
    assert manifest.state == "finished"
    assert manifest.steps == 12
    assert manifest.step_unit == "optimizer step"
    assert manifest.problems == ()
    steps, others = lines_of(tmp_path / "profiles")
    assert [step.step for step in steps] == list(range(12))
    assert [step.loss for step in steps] == [None, *losses(trainer)[:11]]
    for step in steps:
        assert set(step.phases) >= {"forward", "backward", "optimizer"}
        assert step.data_wait_ns > 0
        assert step.data_wait_ns + sum(step.phases.values()) <= step.dur_ns
    # Logged after each step, which is a part of the next one, where nothing else comes between.
    assert {step.step for step in steps if "logging" in step.phases} >= {1, 2, 3, 4, 6}
    # The Trainer evaluates and saves after steps 5 and 10, and at the end: it evaluates there only
    # in newer versions.
    besides = [(line.kind, line.step) for line in others]
    assert besides[:4] == [(kind, step) for step in (5, 10) for kind in moments.seen]
    assert besides[4:] in ([("checkpoint", 12)], [("evaluation", 12), ("checkpoint", 12)])
    for kind, seen in moments.seen.items():
        assert seen
        own = [line for line in others if line.kind == kind]
        rest = [line for line in (*steps, *others) if line.kind != kind]
        for moment in seen:
            assert any(moments.meets(line, moment, manifest) for line in own)
            assert not any(moments.meets(line, moment, manifest) for line in rest)
    # The window spans the evaluation and the checkpoint: its steps do not.
    window = open_run(tmp_path / "profiles").windows[0]
    trace = stepscope.load(window.trace_path)
    assert trace.steps["step"].to_list() == [2, 3, 4, 5, 6]
    names = trace.names.filter(pl.col("name").is_in(list(moments.seen))).select("name_id", "name")
    ranges = trace.events.join(names, on="name_id").collect()
    assert sorted(ranges["name"]) == ["checkpoint", "evaluation"]
    for row in ranges.iter_rows(named=True):
        begins, ends = row["start_ns"], row["start_ns"] + row["dur_ns"]
        inside = (pl.col("start_ns") < ends) & (pl.col("end_ns") > begins)
        assert trace.steps.filter(inside).is_empty()


def test_a_checkpoint_of_the_best_model_is_in_no_step(tmp_path, callback_class):
    callback = callback_class(output_dir=tmp_path / "profiles", **QUICK)
    trainer = trainer_of(
        tmp_path / "out",
        [callback],
        max_steps=6,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="best",
        metric_for_best_model="loss",
        learning_rate=0.01,
    )
    moments = Moments(trainer)
    trainer.train()
    steps, others = lines_of(tmp_path / "profiles")
    assert len(steps) == 6
    assert {line.kind for line in others} == {"evaluation"}
    assert moments.seen["checkpoint"]
    manifest = manifest_of(tmp_path / "profiles")
    for moment in moments.seen["checkpoint"]:
        assert not any(moments.meets(line, moment, manifest) for line in steps)


def test_micro_batches_can_be_the_steps(tmp_path, callback_class):
    # 60 samples make 15 batches, and 5 optimizer steps, in each epoch.
    callback = callback_class(output_dir=tmp_path / "profiles", step_unit="micro-batch", **QUICK)
    trainer = trainer_of(
        tmp_path / "out",
        [callback],
        samples=60,
        num_train_epochs=2,
        gradient_accumulation_steps=3,
    )
    trainer.train()
    assert trainer.state.global_step == 10
    manifest = manifest_of(tmp_path / "profiles")
    assert manifest.step_unit == "micro-batch"
    steps, _ = lines_of(tmp_path / "profiles")
    assert manifest.steps == len(steps) == 30
    with_optimizer = [step.step for step in steps if "optimizer" in step.phases]
    assert with_optimizer == list(range(2, 30, 3))
    assert all({"forward", "backward"} <= set(step.phases) for step in steps)


def test_a_resumed_training_begins_to_count_anew(tmp_path, callback_class):
    options = {"max_steps": 9, "save_strategy": "steps", "save_steps": 4, "save_total_limit": 5}
    first = trainer_of(tmp_path / "out", **options)
    first.train()
    checkpoint = str(tmp_path / "out" / "checkpoint-4")
    callback = callback_class(output_dir=tmp_path / "profiles", **QUICK)
    trainer = trainer_of(tmp_path / "again", [callback], **options)
    trainer.train(resume_from_checkpoint=checkpoint)
    assert trainer.state.global_step == 9
    assert same(weights(trainer), weights(first))
    steps, others = lines_of(tmp_path / "profiles")
    assert [step.step for step in steps] == [0, 1, 2, 3, 4]
    assert all(step.data_wait_ns for step in steps)
    assert [(line.kind, line.step) for line in others] == [("checkpoint", 4), ("checkpoint", 5)]
    assert manifest_of(tmp_path / "profiles").windows[0].state == "complete"


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return (Samples(1)[number] for number in range(100))


def test_a_stream_of_samples_with_workers(tmp_path, callback_class):
    callback = callback_class(output_dir=tmp_path / "profiles", **QUICK)
    trainer = trainer_of(tmp_path / "out", [callback], max_steps=8, dataloader_num_workers=2)
    trainer.train_dataset = Stream()
    trainer.train()
    steps, _ = lines_of(tmp_path / "profiles")
    assert len(steps) == 8
    assert all(step.data_wait_ns for step in steps)


class Fault(RuntimeError):
    pass


def fail_in_step(trainer, number):
    original = trainer.training_step

    def training_step(*arguments, **keywords):
        if trainer.state.global_step == number:
            raise Fault("planted")
        return original(*arguments, **keywords)

    trainer.training_step = training_step


def test_an_error_ends_the_run_as_what_it_is(tmp_path, callback_class):
    callback = callback_class(output_dir=tmp_path / "first", **QUICK)
    trainer = trainer_of(tmp_path / "out", [callback], max_steps=8)
    fail_in_step(trainer, 3)
    with pytest.raises(Fault), callback:
        trainer.train()
    assert torch_is_as_before()
    manifest = manifest_of(tmp_path / "first")
    assert manifest.state == "failed"
    assert manifest.ended.startswith("Fault in step 3: planted")
    assert manifest.steps == 3
    assert open_run(tmp_path / "first").ranks[0].steps[-1].is_partial
    assert manifest.windows[0].state == "partial"


def test_a_training_that_follows_an_error_that_was_caught_is_a_run_of_its_own(
    tmp_path, callback_class
):
    callback = callback_class(output_dir=tmp_path / "profiles", **QUICK)
    trainer = trainer_of(tmp_path / "out", [callback], max_steps=6)
    fail_in_step(trainer, 2)
    with pytest.raises(Fault):
        trainer.train()
    first = callback.run_path
    again = trainer_of(tmp_path / "out", [callback], max_steps=6)
    again.train()
    assert callback.run_path != first
    assert "BrokenOffError in step 2" in manifest_of(first).ended
    manifest = manifest_of(callback.run_path)
    assert (manifest.state, manifest.steps) == ("finished", 6)
    assert torch_is_as_before()


def test_an_error_that_nobody_catches(tmp_path):
    script = (
        HEAD
        + """
from tests.support.frameworks import trainer_of
from tests.integration.test_integration_transformers import QUICK, fail_in_step
from stepscope.adapters.transformers import StepscopeCallback

trainer = trainer_of("out", [StepscopeCallback(output_dir="profiles", **QUICK)], max_steps=8)
fail_in_step(trainer, 3)
trainer.train()
"""
    )
    ended = plainly(tmp_path, script, PYTHONPATH=paths_of_this_process())
    assert ended.returncode == 1
    assert "Fault: planted" in ended.stderr
    manifest = manifest_of(tmp_path / "profiles")
    assert (manifest.state, manifest.steps) == ("failed", 3)
    assert manifest.ended.startswith("Fault in step 3: planted")


def test_max_steps_ends_the_training(tmp_path, callback_class):
    callback = callback_class(output_dir=tmp_path / "profiles", max_steps=7, **QUICK)
    trainer = trainer_of(tmp_path / "out", [callback], max_steps=15)
    trainer.train()
    assert trainer.state.global_step == 7
    assert manifest_of(tmp_path / "profiles").steps == 7


def arguments_of(words, dialect="hf"):
    parser = argparse.ArgumentParser()
    stepscope.add_arguments(parser, dialect=dialect)
    return parser.parse_args(words)


def test_the_flags_of_a_guide_make_a_callback(tmp_path, monkeypatch, callback_class):
    monkeypatch.chdir(tmp_path)
    flags = ["--enable-profiling", "--profiler-wait-steps", "1", "--profiler-warmup-steps", "1"]
    callback = callback_class.from_args(arguments_of([*flags, "--profiler-active-steps", "3"]))
    trainer_of(tmp_path / "out", [callback], max_steps=6).train()
    (trace,) = (tmp_path / "profiler_traces").glob("*.pt.trace.json.gz")
    assert steps_in_trace(trace) == [2, 3, 4]
    options = json.loads((callback.run_path / "run.json").read_text())["options"]
    assert all(options[name] for name in ("with_stack", "with_flops", "record_shapes"))


def test_memory_is_printed_under_the_trainers_own_step_numbers(tmp_path, capsys, callback_class):
    def printed_by(callback, steps, resumed=None):
        trainer = trainer_of(
            tmp_path / "out", [callback], max_steps=steps, save_strategy="steps", save_steps=3
        )
        trainer.train(resume_from_checkpoint=resumed)
        lines = capsys.readouterr().out.splitlines()
        return [line.split("]")[0] for line in lines if line.startswith("[Step ")]

    options = {"output_dir": tmp_path / "profiles", "memory_log": True, "log_steps": 2, **QUICK}
    assert printed_by(callback_class(**options), 4) == ["[Step 2", "[Step 4"]
    resumed = tmp_path / "out" / "checkpoint-3"
    assert printed_by(callback_class(**options), 8, str(resumed)) == [
        "[Step 4",
        "[Step 6",
        "[Step 8",
    ]


def test_without_the_flag_nothing_is_done(tmp_path, monkeypatch, callback_class):
    monkeypatch.chdir(tmp_path)
    callback = callback_class.from_args(arguments_of([]))
    trainer_of(tmp_path / "out", [callback], max_steps=2).train()
    assert callback.profiler is None
    assert not (tmp_path / "profiler_traces").exists()


def test_every_option_is_taken_and_wrong_ones_are_told_at_once(tmp_path, callback_class):
    profiler = stepscope.Profiler(
        output_dir=tmp_path / "profiles",
        run_name="mine",
        with_stack=True,
        record_shapes=True,
        with_flops=True,
        memory_timeline="trace",
        **QUICK,
    )
    trainer_of(tmp_path / "out", [callback_class(profiler)], max_steps=5).train()
    window = tmp_path / "profiles" / "mine" / "rank00000" / "window-0000"
    files = {path.name for path in window.iterdir()}
    assert files >= {"trace.json.gz", "key_averages.txt", "stacks.txt", "memory_timeline.html"}
    with pytest.raises(UsageError, match="actve"):
        callback_class(actve=3)
    with pytest.raises(UsageError, match="either"):
        callback_class(profiler, wait=3)


def test_evaluations_that_the_trainer_does_not_announce(tmp_path, callback_class):
    from transformers import TrainerCallback

    class Evaluating(TrainerCallback):
        """Evaluates in the middle of step 2, and at the end of step 4, before we hear of that."""

        trainer = None

        def on_substep_end(self, args, state, control, **more):
            if state.global_step == 2:
                self.trainer.evaluate()

        def on_step_end(self, args, state, control, **more):
            if state.global_step == 5:
                self.trainer.predict(self.trainer.eval_dataset)

    evaluating = Evaluating()
    callback = callback_class(output_dir=tmp_path / "profiles", **QUICK)
    trainer = trainer_of(
        tmp_path / "out",
        [evaluating, callback],
        max_steps=7,
        gradient_accumulation_steps=2,
        eval_on_start=True,
        logging_strategy="no",
    )
    evaluating.trainer = trainer
    trainer.train()
    steps, others = lines_of(tmp_path / "profiles")
    assert len(steps) == 7
    assert [step.step for step in steps if "evaluation" in step.phases] == [2, 4]
    assert ("evaluation", 0) in [(line.kind, line.step) for line in others]
    assert all(step.data_wait_ns + sum(step.phases.values()) <= step.dur_ns for step in steps)
    assert manifest_of(tmp_path / "profiles").problems == ()


def test_a_script_with_the_callback_keeps_its_own_run_below_stepscope_run(tmp_path):
    script = (
        HEAD
        + """
from tests.support.frameworks import trainer_of
from stepscope.adapters.transformers import StepscopeCallback

callback = StepscopeCallback(output_dir="own", activities="cpu")
trainer = trainer_of("out", [callback], max_steps=12)
trainer.evaluate()
trainer.train()
tell(trainer.state.global_step)
"""
    )
    ours = recorded(tmp_path, script, PYTHONPATH=paths_of_this_process())
    assert ours.returncode == 0, ours.stderr
    assert "RESULT 12" in ours.stdout
    (rank,) = open_run(tmp_path / "own").ranks
    assert rank.manifest.steps == 12
    assert not (tmp_path / "profiles").exists()
    assert "the script records itself" in ours.stderr


def test_two_ranks_of_torchrun(tmp_path):
    script = (
        HEAD
        + """
from tests.support.frameworks import trainer_of
from tests.integration.test_integration_transformers import QUICK
from stepscope.adapters.transformers import StepscopeCallback

callback = StepscopeCallback(output_dir="profiles", ranks="0", **QUICK)
options = {"max_steps": 6, "eval_strategy": "steps", "eval_steps": 4}
trainer = trainer_of("out", [callback], ddp_find_unused_parameters=False, **options)
trainer.train()
torch.distributed.destroy_process_group()
"""
    )
    run = two_ranks(tmp_path, script)
    assert [rank.manifest.steps for rank in run.ranks] == [6, 6]
    assert [len(rank.windows) for rank in run.ranks] == [1, 0]
    for rank in run.ranks:
        assert ("evaluation", 4) in [(line.kind, line.step) for line in rank.steps]


def test_beside_a_profiler_that_already_runs_the_callback_records_nothing(
    tmp_path, callback_class, caplog
):
    trainer = trainer_of(tmp_path / "out", [callback_class(output_dir=tmp_path / "b")], max_steps=2)
    with stepscope.Profiler(output_dir=tmp_path / "a", **QUICK):
        trainer.train()
    assert "this callback records nothing" in caplog.text
    assert not (tmp_path / "b").exists()
    assert torch_is_as_before()
