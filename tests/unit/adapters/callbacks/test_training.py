"""What a framework's callbacks tell becomes a recording; frameworks themselves are not needed."""

from __future__ import annotations

import itertools
import os
import pickle
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from tests.support.runs import manifest_of, steps_in_trace
from torch import autograd
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader, TensorDataset

import stepscope
from stepscope import open_run
from stepscope.adapters.callbacks.lightning_events import CallbackEvents, ProfilerEvents
from stepscope.adapters.callbacks.training import CallbackBase, TrainingRecorder, identity_of
from stepscope.capture.ranks import RankIdentity
from stepscope.errors import UsageError
from stepscope.run.step_record import CHECKPOINT, EVALUATION

QUICK = {"wait": 1, "warmup": 1, "active": 2, "activities": "cpu", "triggers": False}
ALONE = RankIdentity()


def recorder_in(folder, **options):
    return TrainingRecorder(stepscope.Profiler(output_dir=folder, **{**QUICK, **options}))


class Training:
    """A framework in small, with its data."""

    def __init__(self, recorder):
        self.recorder = recorder
        self.data = TensorDataset(torch.randn(64, 4))
        self.loader = iter(DataLoader(self.data, batch_size=4))
        self.other = DataLoader(TensorDataset(torch.randn(8, 4)), batch_size=4)
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def begin(self):
        self.recorder.begin(ALONE, data=self.data)

    def batch(self):
        (batch,) = next(self.loader)
        self.recorder.forward()
        self.model(batch).square().mean().backward()

    def step(self, batches=1):
        for _ in range(batches):
            self.batch()
        self.optimizer.step()
        return self.recorder.step_ended()

    def evaluate(self):
        with torch.no_grad():
            for (batch,) in self.other:
                self.model(batch)


def kinds(folder):
    steps = open_run(folder).ranks[0].steps
    return [(line.kind, line.step) for line in steps if line.kind != "train"]


def train_steps(folder):
    return [line for line in open_run(folder).ranks[0].steps if line.kind == "train"]


def test_a_training_from_its_beginning_to_its_end(tmp_path):
    before = sys.excepthook
    backward = autograd.backward
    recorder = recorder_in(tmp_path)
    training = Training(recorder)
    training.begin()
    for _ in range(6):
        assert training.step(batches=2) is False
    recorder.finish()
    assert autograd.backward is backward
    assert sys.excepthook is before
    assert not optimizers._global_optimizer_pre_hooks
    assert not optimizers._global_optimizer_post_hooks
    manifest = manifest_of(tmp_path)
    assert (manifest.state, manifest.steps) == ("finished", 6)
    assert manifest.step_unit == "optimizer step"
    (window,) = open_run(tmp_path).windows
    assert steps_in_trace(window.trace_path) == [2, 3]
    for step in train_steps(tmp_path):
        assert set(step.phases) == {"forward", "backward", "optimizer"}
        assert step.data_wait_ns + sum(step.phases.values()) <= step.dur_ns
    # After its end nothing is recorded, and nothing fails.
    training.step()
    recorder.suspend_steps(EVALUATION)
    recorder.restart_step()
    recorder.phase("x")
    recorder.finish()
    assert manifest_of(tmp_path).steps == 6


def test_what_is_done_between_steps_has_lines_of_its_own(tmp_path):
    recorder = recorder_in(tmp_path)
    training = Training(recorder)
    training.begin()
    training.step()
    recorder.suspend_steps(EVALUATION)
    recorder.suspend_steps(EVALUATION)
    training.evaluate()
    recorder.suspend_steps(CHECKPOINT)
    training.step()  # the training's own data end what was done besides
    training.evaluate()  # not announced, and over without a word
    recorder.restart_step()
    training.step()
    recorder.finish()
    assert kinds(tmp_path) == [("evaluation", 1), ("checkpoint", 1)]
    steps = train_steps(tmp_path)
    assert [step.step for step in steps] == [0, 1, 2]
    record = open_run(tmp_path).ranks[0].steps
    for line, following in itertools.pairwise(record):
        assert line.start_ns + line.dur_ns <= following.start_ns
    for line in record[1:3]:
        assert line.data_wait_ns == 0
        assert line.phases == {}
    assert manifest_of(tmp_path).steps == 3


def test_steps_inside_what_is_done_besides_do_not_count(tmp_path):
    with stepscope.Profiler(output_dir=tmp_path, **QUICK) as profiler:
        for number in profiler.watch(range(6)):
            if number == 2:
                profiler.step()
                with profiler.outside_steps("evaluation"):
                    for inner in range(3):
                        profiler.step()
                        profiler.session.restart_step()
                        with profiler.outside_steps("checkpoint"):
                            assert inner < 3
            torch.ones(8).sum()
            if number >= 2:
                profiler.step()
    record = open_run(tmp_path).ranks[0].steps
    assert [(line.kind, line.step) for line in record] == [
        *(("train", step) for step in range(3)),
        ("evaluation", 3),
        *(("train", step) for step in range(3, 7)),
    ]
    assert manifest_of(tmp_path).steps == 7
    for line, following in itertools.pairwise(record):
        assert line.start_ns + line.dur_ns <= following.start_ns


def test_an_evaluation_in_the_middle_of_a_step_is_a_phase_of_it(tmp_path):
    recorder = recorder_in(tmp_path)
    training = Training(recorder)
    training.begin()
    training.batch()
    recorder.suspend_steps(EVALUATION)
    training.evaluate()
    recorder.restart_step()  # would lose the first half
    recorder.resume_steps()
    training.step()
    recorder.finish()
    assert kinds(tmp_path) == []
    (step,) = train_steps(tmp_path)
    assert set(step.phases) == {"forward", "backward", "evaluation", "optimizer"}


def test_an_evaluation_that_fails_is_a_partial_line(tmp_path):
    recorder = recorder_in(tmp_path)
    training = Training(recorder)
    training.begin()
    training.step()
    recorder.suspend_steps(EVALUATION)
    recorder.finish(ValueError("planted"))
    (line,) = [line for line in open_run(tmp_path).ranks[0].steps if line.kind != "train"]
    assert (line.kind, line.is_partial) == ("evaluation", True)
    manifest = manifest_of(tmp_path)
    assert (manifest.state, manifest.steps) == ("failed", 1)


def test_other_threads_and_forked_processes_do_not_count(tmp_path):
    recorder = recorder_in(tmp_path)
    training = Training(recorder)
    training.begin()
    thread = threading.Thread(target=lambda: torch.ones(2, requires_grad=True).sum().backward())
    thread.start()
    thread.join()
    child = os.fork()
    if child == 0:
        torch.ones(2, requires_grad=True).sum().backward()
        recorder.finish()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    training.step()
    recorder.finish()
    manifest = manifest_of(tmp_path)
    assert (manifest.state, manifest.steps) == ("finished", 1)


def test_what_somebody_else_wrapped_meanwhile_stays_wrapped(tmp_path, monkeypatch):
    recorder = recorder_in(tmp_path)
    training = Training(recorder)
    monkeypatch.setattr(autograd, "backward", autograd.backward)  # put back at the end
    training.begin()
    ours = autograd.backward
    calls = []

    def theirs(*arguments, **keywords):
        calls.append(1)
        return ours(*arguments, **keywords)

    autograd.backward = theirs
    training.step()
    recorder.finish()
    assert autograd.backward is theirs
    torch.ones(2, requires_grad=True).sum().backward()
    assert len(calls) == 2


def test_disabled_it_touches_nothing(tmp_path):
    backward = autograd.backward
    recorder = recorder_in(tmp_path, enabled=False)
    training = Training(recorder)
    training.begin()
    assert autograd.backward is backward
    training.step()
    recorder.finish()
    assert list(tmp_path.iterdir()) == []


def test_ranks_as_frameworks_tell_them(monkeypatch):
    monkeypatch.setenv("GROUP_RANK", "1")
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert identity_of(5, 1, 8) == RankIdentity(5, 1, 8, 1)
    assert identity_of(0, 0, 1) == RankIdentity()


def test_a_profiler_that_is_given_is_a_pattern_and_not_used_up(tmp_path):
    pattern = stepscope.Profiler(output_dir=tmp_path, run_name="mine", layout="sfm", **QUICK)
    door = CallbackBase(pattern)
    for _ in range(2):
        training = Training(door._recorder)
        training.begin()
        training.step()
        door._recorder.finish()
    assert {path.name for path in tmp_path.iterdir()} >= {"mine", "mine-2"}
    assert pattern.run_path is None
    assert door.run_path == tmp_path / "mine-2"
    with pytest.raises(UsageError, match="either a Profiler or options"):
        CallbackBase(pattern, wait=3)


def test_a_door_can_be_sent_to_another_process(tmp_path):
    door = pickle.loads(pickle.dumps(CallbackEvents(output_dir=tmp_path, **QUICK)))
    training = Training(door._recorder)
    training.begin()
    training.step()
    door._recorder.finish()
    assert manifest_of(tmp_path).steps == 1


def test_no_framework_is_imported_before_its_door_is():
    code = (
        "import sys, stepscope, stepscope.adapters.callbacks.lightning_events; stepscope.Profiler; "
        "frameworks = {'transformers', 'accelerate', 'lightning', 'pytorch_lightning'}; "
        "sys.exit(bool(frameworks & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    assert (
        subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0
    )


# -- Lightning, without it ------------------------------------------------------------------------


class Trainer(SimpleNamespace):
    def __init__(self):
        super().__init__(
            global_step=0, global_rank=0, local_rank=0, world_size=1, should_stop=False
        )


class Base:
    """The profiler of Lightning that ours is mixed into."""

    def teardown(self, stage):
        self.is_torn_down = True


class Actions(ProfilerEvents, Base):
    def profile(self, *names, inside=lambda: None):
        """Nested actions, the outermost first."""
        if not names:
            inside()
            return
        self.start(names[0])
        try:
            self.profile(*names[1:], inside=inside)
        finally:
            self.stop(names[0])


def test_the_actions_of_a_trainer_make_steps(tmp_path):
    profiler = Actions(output_dir=tmp_path, **{**QUICK, "active": 4})
    trainer = Trainer()
    profiler._lightning_module = SimpleNamespace(_trainer=trainer)
    training = Training(profiler._recorder)

    def batch():
        loss = training.model(next(training.loader)[0]).square().mean()
        loss.backward()
        if trainer.fetched % 2 == 0:
            training.optimizer.step()
            trainer.global_step += 1

    def epoch():
        for number in range(1, 13):
            trainer.fetched = number
            profiler.profile("[_TrainingEpochLoop].train_dataloader_next")
            profiler.profile("run_training_batch", inside=batch)
            profiler.profile("[Callback]Saver{'every': 1}.on_train_batch_end")
            if number == 6:
                profiler.start("[LightningModule]Model.on_validation_model_eval")
                profiler.stop("[LightningModule]Model.on_validation_model_eval")
                training.evaluate()
                profiler.profile(
                    "save_checkpoint", "[Callback]Saver{'every': 1}.on_save_checkpoint"
                )
                profiler.profile("[LightningModule]Model.on_validation_model_train")

    profiler.profile("run_training_epoch", inside=epoch)
    profiler.profile("[LightningModule]Model.on_train_end")
    profiler.teardown("fit")
    assert profiler.is_torn_down
    manifest = manifest_of(tmp_path)
    assert (manifest.state, manifest.steps) == ("finished", 6)
    assert kinds(tmp_path) == [("evaluation", 3), ("checkpoint", 3)]
    (window,) = open_run(tmp_path).windows
    assert steps_in_trace(window.trace_path) == [2, 3, 4, 5]
    names = set(stepscope.load(window.trace_path).names.collect()["name"])
    assert "[Callback]Saver.on_train_batch_end" in names
    for step in train_steps(tmp_path):
        assert step.data_wait_ns > 0
        assert set(step.phases) == {"forward", "backward", "optimizer"}


def test_an_error_that_passes_through_an_action(tmp_path):
    profiler = Actions(output_dir=tmp_path, **QUICK)
    optimizer = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)

    def batch():
        raise ValueError("planted")

    def epoch():
        for _ in range(3):
            optimizer.step()
            profiler.profile("run_training_batch")
        profiler.profile("run_training_batch", inside=batch)

    # What is being handled around the training is no error of it.
    try:
        raise KeyError("before")
    except KeyError:
        with pytest.raises(ValueError, match="planted"):
            profiler.profile("run_training_epoch", inside=epoch)
    manifest = manifest_of(tmp_path)
    assert (manifest.state, manifest.steps) == ("failed", 3)
    assert manifest.ended.startswith("ValueError in step 3: planted")


def test_the_hooks_of_a_trainer_make_steps(tmp_path):
    callback = CallbackEvents(output_dir=tmp_path, max_steps=4, **QUICK)
    trainer = Trainer()
    training = Training(callback._recorder)
    callback.on_train_start(trainer, None)
    for number in range(1, 9):
        (batch,) = next(training.loader)
        callback.on_train_batch_start(trainer, None, batch, number)
        training.model(batch).square().mean().backward()
        if number % 2 == 0:
            training.optimizer.step()
            trainer.global_step += 1
        callback.on_train_batch_end(trainer, None, None, batch, number)
        if number == 4:
            callback.on_save_checkpoint(trainer, None, {})
            time.sleep(0.001)
    assert trainer.should_stop
    callback.on_train_end(trainer, None)
    callback.teardown(trainer, None, "fit")
    assert manifest_of(tmp_path).steps == 4
    assert kinds(tmp_path) == [("checkpoint", 2)]


def test_a_training_that_ends_without_a_step_is_told(tmp_path, caplog):
    recorder = recorder_in(tmp_path)
    recorder.begin(ALONE)
    recorder.finish()
    assert "ended without a step" in caplog.text


@pytest.mark.parametrize("begins", [True, False])
def test_a_fit_that_lightning_ends_at_once_is_told(tmp_path, caplog, begins):
    callback = CallbackEvents(output_dir=tmp_path, **QUICK)
    trainer = SimpleNamespace(global_rank=0, local_rank=0, world_size=1, global_step=0)
    callback.teardown(trainer, None, stage="validate")
    assert not caplog.text
    if begins:
        callback.on_train_start(trainer, None)
        callback._recorder.step_ended()
    callback.teardown(trainer, None, stage="fit")
    assert ("ended without a step" in caplog.text) is not begins


def test_a_callback_beside_another_profiler_records_nothing_and_ends_nothing(tmp_path, caplog):
    with stepscope.Profiler(output_dir=tmp_path / "outer", **QUICK):
        recorder = recorder_in(tmp_path / "inner")
        training = Training(recorder)
        training.begin()
        training.step()
        recorder.finish()
    assert "this callback records nothing" in caplog.text
    assert not (tmp_path / "inner").exists()
