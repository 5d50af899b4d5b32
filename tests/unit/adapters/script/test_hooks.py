"""What a script does with torch becomes steps, waits and phases, told to one that listens."""

from __future__ import annotations

import contextlib
import json
import pickle
import threading
import time
import types

import pytest
import torch

from stepscope.adapters.script import hooks
from stepscope.adapters.script.hooks import ScriptRecorder
from stepscope.capture.steps.phase_times import CALL, RETURN, PhaseTimes


class Core:
    """Writes down what is noted of a step; its phases are computed as they are for a record."""

    def __init__(self, told):
        self.told = told
        self.number = 0
        self.begun = None
        self.is_on = self.has_notes = True
        self.thread = threading.get_ident()
        self.times = PhaseTimes()
        self.open = []
        self.now_ns = 0
        self.loaders = None
        self.own_ns = []

    def leave_out_own(self, duration_ns):
        self.own_ns.append(duration_ns)

    def note_spent(self, name, duration_ns):
        self.told.append(name)

    def note(self, kind, value=None, *, ends_phase=True):
        self.now_ns += 1
        self.times.see([(kind, value, self.now_ns, None)])
        self.follow()

    def begin_call(self, depends):
        self.note(CALL, depends)

    def end_call(self, has_loss):
        self.note(RETURN, has_loss)

    def follow(self):
        wanted = [phase.name for phase in self.times.open]
        while self.open and self.open != wanted[: len(self.open)]:
            self.told.append(f"-{self.open.pop()}")
        for name in wanted[len(self.open) :]:
            self.told.append(f"+{name}")
            self.open.append(name)

    def cut(self):
        self.times.end_step((), self.now_ns, None)
        self.follow()

    def phases_so_far(self):
        return self.times

    def see_loader(self, *parts, batch=None, read=None):
        self.parts = parts

    def loader_ends(self, iterator):
        pass

    def add_loader_time(self, **parts_ns):
        pass

    def begin_wait(self):
        self.told.append("wait")
        return ()

    def end_wait(self, began, *, counts):
        return 0, 0

    @contextlib.contextmanager
    def waiting(self):
        yield self.begin_wait()


class Listener:
    """Writes down what a profiler is told."""

    def __init__(self):
        self.told = []
        self.work = []
        self.run_path = None
        self.session = self
        self.rank_path = None
        self.steps = Core(self.told)

    def step(self, *, tokens=None, samples=None):
        self.steps.cut()
        self.steps.number += 1
        self.told.append("step")
        self.work.append((samples, tokens))

    def restart_step(self, kind=""):
        self.steps.cut()
        self.told.append("restart" if kind == "evaluation" else f"restart after {kind}")

    def mark(self, kind):
        self.told.append(f"mark {kind}")

    def finish(self, error):
        self.told.append("end")


class Data:
    """An iterator over a DataLoader's dataset."""

    def __init__(self, dataset, *, is_batched=True):
        self._dataset = dataset
        self._auto_collation = is_batched


class Optimizer:
    pass


class Script:
    """Does what a script does."""

    def __init__(self, tmp_path, step_on="optimizer"):
        self.recorder = ScriptRecorder({}, step_on, tmp_path)
        self.listener = self.recorder._profiler = Listener()
        self.recorder.detector.attach(self.listener.steps)
        self.train, self.other = object(), object()
        self.fetch = self.recorder.detector.loaders.around_fetch(lambda iterator: "batch")
        self.backward = self.recorder.detector.around_backward(lambda *_: None)
        self.optimizer = Optimizer()

    def batch(self, data=None):
        assert self.fetch(Data(data or self.train)) == "batch"

    def learn(self, optimizer=None):
        optimizer = optimizer or self.optimizer
        assert self.recorder.detector.before_optimizer(optimizer, (optimizer,), {}) is None
        self.recorder.detector.after_optimizer(optimizer, (), {})

    def step(self, batches=1):
        for _ in range(batches):
            self.batch()
            self.backward()
        self.learn()

    def count(self, word):
        return self.listener.told.count(word)


@pytest.fixture
def script(tmp_path):
    script = Script(tmp_path)
    yield script
    script.recorder.detector.remove()


def test_a_step_in_its_order(script):
    script.step()
    assert script.listener.told == [
        *("wait", "+forward", "-forward", "+backward", "-backward"),
        *("+optimizer", "-optimizer", "step"),
    ]


def test_gradient_accumulation_makes_one_step_of_several_batches(script, tmp_path):
    for _ in range(5):
        script.step(batches=4)
    assert script.count("step") == 5
    assert script.count("restart") == 0
    script.recorder.finish()
    (note,) = (json.loads(path.read_bytes()) for path in tmp_path.iterdir())
    assert note["batches_per_step"] == 4
    assert note["steps"] == 5


def test_several_losses_of_one_batch_are_no_accumulation(script, tmp_path):
    """As of a GAN, whose two networks learn from the same batch."""
    for _ in range(5):
        script.batch()
        script.backward()
        script.backward()
        script.learn()
    script.recorder.finish()
    (note,) = (json.loads(path.read_bytes()) for path in tmp_path.iterdir())
    assert note["batches_per_step"] == 1
    assert note["steps"] == 5


def test_an_iteration_ends_where_the_next_batch_is_asked_for(tmp_path):
    script = Script(tmp_path, "iteration")
    for _ in range(3):
        script.step(batches=4)
    assert script.count("step") == 11
    script.recorder.finish()
    assert script.count("step") == 12
    assert script.listener.told[-3:] == ["mark the last step, seen in part", "step", "end"]


def test_forward_of_an_inference_ends_with_the_call_of_its_module(tmp_path):
    """What a script makes of the answer is no part of it; the first batch shows what is called."""

    class Model(torch.nn.Linear):
        pass

    script, model = Script(tmp_path, step_on="batch"), Model(2, 2)
    try:
        with torch.inference_mode():
            for _ in range(3):
                script.batch()
                model(torch.ones(1, 2))
                script.listener.told.append("answer")
    finally:
        script.recorder.detector.remove()
    of_batch = ["+forward", "-forward", "answer"]
    first = ["wait", "+forward", "answer", "-forward", "step"]
    assert script.listener.told == [*first, "wait", *of_batch, "step", "wait", *of_batch]


@pytest.mark.parametrize("has_batch", [True, False])
def test_a_first_step_that_is_seen_in_part_is_named_so(has_batch, tmp_path, monkeypatch):
    class Started(Listener):
        config = types.SimpleNamespace(output_dir="")

        def start(self):
            self.run_path = tmp_path

    script = Script(tmp_path)
    script.recorder._profiler = script.recorder.detector.core = None
    monkeypatch.setattr(hooks, "Profiler", lambda _config: Started())
    if has_batch:
        script.batch()
    script.backward()
    told = script.recorder._profiler.told
    assert ("mark the first step, seen in part" in told) == (not has_batch)


def test_iterations_without_a_data_loader_end_with_the_optimizer(tmp_path):
    script = Script(tmp_path, "iteration")
    for _ in range(3):
        script.backward()
        script.learn()
    assert script.count("step") == 3


def test_an_evaluation_between_steps_is_no_part_of_the_next(script):
    script.batch(script.other)
    script.batch(script.other)
    script.step()
    assert script.listener.told.count("restart") == 1
    for _ in range(3):
        script.step()
    for _ in range(2):
        script.batch(script.other)
    told = len(script.listener.told)
    script.step()
    assert script.listener.told[told] == "-forward"
    assert script.listener.told[told + 1] == "restart"


@pytest.mark.parametrize("every", [2, 3, 20])
def test_an_evaluation_is_one_however_often_it_comes(script, every):
    for epoch in range(6):
        for _ in range(every):
            script.step()
        for _ in range(3):
            script.batch(script.other)
        assert script.count("restart") == epoch
    assert script.count("step") == 6 * every


def test_an_evaluation_may_use_the_data_of_the_training(script):
    for epoch in range(4):
        for _ in range(3):
            script.step()
        with torch.no_grad():
            script.batch()
            script.batch()
        assert script.count("restart") == epoch


@pytest.fixture
def model(script):
    """A model whose modes are told, and its normalisation."""
    script.recorder.detector.install()
    yield torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    script.recorder.detector.remove()


def test_a_model_that_is_set_to_evaluation_and_back_is_evaluated(script, model):
    for epoch in range(6):
        for _ in range(3):
            script.step()
        assert script.count("restart") == epoch
        assert model.eval() is model
        assert not any(module.training for module in model.modules())
        assert model.train() is model
        assert all(module.training for module in model.modules())
    assert script.listener.told[-1] == "restart"


def test_a_compiled_function_may_set_the_mode(script, model):
    @torch.compile(backend="eager", fullgraph=True)
    def call(batch):
        model.eval()
        return model(batch)

    try:
        assert call(torch.ones(3, 2)).shape == (3, 2)
    finally:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()  # others ask whether this process has compiled
    assert not model.training
    assert script.count("restart") == 0


def test_modes_that_are_part_of_every_step_are_no_evaluation(script, model):
    for _ in range(6):
        model.train()
        model[1].eval()  # frozen statistics
        script.step()
    assert script.count("restart") == 0
    for _ in range(6):
        model.eval()
        model.train()
        script.step()
    assert script.count("restart") <= 2
    assert script.count("step") == 12


def test_a_model_that_learns_while_set_to_evaluation_is_not_evaluated(script, model):
    for _ in range(3):
        model.eval()
        script.step()
        model.train()
        script.batch()
        script.backward()
        model.eval()
        model.train()
        script.learn()
    assert script.count("restart") == 0


def test_the_modes_of_modules_are_torchs_own_afterwards(script):
    train, evaluate = torch.nn.Module.train, torch.nn.Module.eval
    script.recorder.detector.install()
    assert torch.nn.Module.eval is not evaluate
    assert torch.nn.Module.train is train, "it costs something in every step"
    layer = torch.nn.Linear(1, 1)
    layer.eval()
    with pytest.raises(ValueError, match="training mode is expected to be boolean"):
        layer.train("yes")
    layer.eval()
    layer.train()
    assert torch.nn.Module.train is train
    layer.eval()
    script.recorder.detector.remove()
    assert (torch.nn.Module.train, torch.nn.Module.eval) == (train, evaluate)


def test_two_loaders_in_every_step_are_parts_of_it(script):
    for _ in range(6):
        script.batch(script.other)
        script.step()
    assert script.count("restart") <= 2
    assert script.count("step") == 6


def test_two_optimizers_in_a_step_are_one_step(script):
    second = Optimizer()
    for _ in range(70):
        script.backward()
        script.learn(second)
        script.backward()
        script.learn()
    assert script.count("step") == 70


def two_networks(script, second, count):
    """As of a GAN: each learns from the batch, with an optimizer of its own."""
    for _ in range(count):
        script.batch()
        script.backward()
        script.learn()
        script.backward()
        script.learn(second)


def test_of_two_optimizers_the_last_before_a_batch_ends_the_steps(script):
    second = Optimizer()
    two_networks(script, second, 20)
    told = script.listener.told
    assert script.count("step") == 20
    # Twice is no chance: from the third batch on, steps begin where the loop's iterations do.
    assert told.count("restart after the rest of a step") == 1
    place = told.index("restart after the rest of a step")
    assert told[:place].count("step") == 2
    assert told[place + 1 :][:2] == ["wait", "+forward"]
    assert told[-1] == "step"


@pytest.mark.parametrize("every", [2, 5])
def test_an_evaluation_after_the_second_optimizer_is_no_part_of_a_step(script, every):
    second = Optimizer()
    two_networks(script, second, 4)
    for epoch in range(5):
        two_networks(script, second, every)
        with torch.no_grad():
            script.batch(script.other)
            script.batch(script.other)
        assert script.count("restart") == epoch
    assert script.count("step") == 4 + 5 * every


def test_a_model_that_is_evaluated_after_the_second_optimizer(script, model):
    second = Optimizer()
    two_networks(script, second, 4)
    for epoch in range(3):
        two_networks(script, second, 3)
        assert script.count("restart") == epoch
        model.eval()
        model.train()
    assert script.count("restart") == 3


def test_a_network_that_learns_from_every_batch_ends_the_steps(script):
    """The other one learns from every third, as in a Wasserstein GAN."""
    second = Optimizer()
    for number in range(30):
        script.step()
        if number % 3 == 2:
            script.backward()
            script.learn(second)
    assert script.count("step") == 30
    assert "restart after the rest of a step" not in script.listener.told


def test_optimizers_that_take_turns_at_batches_change_nothing(script):
    second = Optimizer()
    for _ in range(30):
        script.step()
        script.batch()
        script.backward()
        script.learn(second)
    assert script.count("step") == 30
    assert "restart after the rest of a step" not in script.listener.told


def test_an_optimizer_inside_another_is_one_step(script):
    inner = Optimizer()
    script.recorder.detector.before_optimizer(script.optimizer, (), {})
    script.learn(inner)
    script.recorder.detector.after_optimizer(script.optimizer, (), {})
    assert script.count("step") == 1


def test_steps_go_on_after_one_that_raised(script):
    script.recorder.detector.before_optimizer(script.optimizer, (), {})  # and no hook after it
    for _ in range(3):
        script.backward()
        script.learn()
    assert script.count("step") == 3


def test_a_step_with_a_backward_pass_of_its_own_is_one_step(script):
    for _ in range(3):
        script.recorder.detector.before_optimizer(script.optimizer, (), {})
        script.backward()
        script.recorder.detector.after_optimizer(script.optimizer, (), {})
    assert script.count("step") == 3


@pytest.mark.parametrize("is_keyword", [True, False])
def test_a_closure_is_no_part_of_the_optimizer(script, is_keyword):
    given = ((script.optimizer,), {"closure": script.backward})
    if not is_keyword:
        given = ((script.optimizer, script.backward), {})
    arguments, keywords = script.recorder.detector.before_optimizer(script.optimizer, *given)
    assert arguments[0] is script.optimizer
    (keywords["closure"] if is_keyword else arguments[1])()
    script.recorder.detector.after_optimizer(script.optimizer, arguments, keywords)
    assert script.listener.told == [
        *("+optimizer", "-optimizer", "+forward", "-forward", "+backward", "-backward"),
        *("+optimizer", "-optimizer", "step"),
    ]


def test_optimizers_that_step_within_a_backward_pass_end_one_step_with_it(script):
    """Each parameter has its own, in an order that may differ from pass to pass."""
    optimizers = [Optimizer() for _ in range(120)]

    def learn(*_):
        for optimizer in optimizers:
            script.learn(optimizer)

    backward = script.recorder.detector.around_backward(learn)
    for number in range(4):
        script.batch()
        backward()
        assert script.listener.told[-2:] == ["-backward", "step"]
        assert script.count("step") == number + 1
        optimizers.reverse()


def test_a_backward_pass_that_raises_ends_no_step(script):
    def learn(*_):
        script.learn()
        raise ValueError("theirs")

    with pytest.raises(ValueError, match="theirs"):
        script.recorder.detector.around_backward(learn)()
    assert script.count("step") == 0
    script.step()
    assert script.count("step") == 1


def test_a_second_training_with_its_own_optimizer_goes_on(script):
    script.step()
    script.optimizer = Optimizer()
    for _ in range(10):
        script.step()
    # The first optimizer is gone, so the second takes its place at once.
    assert script.count("step") == 11


def test_other_threads_are_left_alone(script):
    thread = threading.Thread(target=script.step)
    thread.start()
    thread.join()
    assert script.listener.told == []


def test_what_the_script_raises_goes_through(script):
    def broken(*_):
        raise ValueError("theirs")

    with pytest.raises(ValueError, match="theirs"):
        script.recorder.detector.around_backward(broken)()
    with pytest.raises(ValueError, match="theirs"):
        script.recorder.detector.loaders.around_fetch(broken)(Data(script.train))
    script.step()
    assert script.count("step") == 1


def test_the_end_of_the_data_is_no_error(script):
    def exhausted(_):
        raise StopIteration

    with pytest.raises(StopIteration):
        script.recorder.detector.loaders.around_fetch(exhausted)(Data(script.train))


def test_options_that_cannot_work_cost_the_recording_and_nothing_else(tmp_path):
    recorder = ScriptRecorder({"active": 0}, "optimizer", tmp_path)
    assert recorder.detector.around_backward(lambda: "result")() == "result"
    (note,) = (json.loads(path.read_bytes()) for path in tmp_path.iterdir())
    assert "active" in note["problem"]


def test_the_end_of_the_data_after_the_last_step_is_no_evaluation(script):
    script.step()
    script.fetch = script.recorder.detector.loaders.around_fetch(next)
    exhausted = iter(())
    with pytest.raises(StopIteration):
        script.fetch(exhausted)
    script.recorder.finish()
    assert script.count("restart") == 0


def test_batches_after_the_last_step_are_an_evaluation(script):
    script.step()
    script.batch(script.other)
    script.recorder.finish()
    assert script.listener.told[-2:] == ["restart", "end"]


def test_what_accumulated_after_the_last_step_is_none(script):
    script.step()
    script.batch()
    script.backward()
    script.recorder.finish()
    assert script.count("restart") == 0


class Model(torch.nn.Module):
    def __init__(self, depth=0):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.inner = Model(depth - 1) if depth else None

    def forward(self, values):
        values = values * self.weight
        return values if self.inner is None else self.inner(values)


def calling(script, *, backwards):
    """A script whose forward passes are calls of modules that it has shown already."""
    calls = script.recorder.detector.calls
    for _ in range(backwards):
        script.backward()
    return calls


def test_forward_begins_with_the_call_of_a_module_once_that_is_known(script):
    model = Model(depth=2)
    calling(script, backwards=1)
    script.listener.told.clear()
    try:
        script.batch()
        loss = model(torch.ones(1))
        script.backward()
        model(torch.ones(1))
        with torch.no_grad():
            model(loss.detach())
        script.learn()
    finally:
        script.recorder.detector.remove()
    assert script.listener.told == [
        *("wait", "+forward", "-forward", "+backward", "-backward"),
        *("+forward", "-forward"),
        *("+optimizer", "-optimizer", "step"),
    ]


def test_a_second_call_continues_forward_and_only_what_it_depends_on_is_between(script):
    model = Model()
    calling(script, backwards=1)
    try:
        script.backward()
        script.listener.told.clear()
        hidden = model(torch.ones(1))
        model(hidden)
        assert script.listener.told == ["+forward"]
        model(torch.ones(1))
        script.backward()
        # Two calls and what is between them; then the third one, and the loss.
        assert script.listener.steps.times.times == {"backward": 3, "forward": 5}
    finally:
        script.recorder.detector.remove()


def test_modules_inside_others_are_looked_for_where_no_outer_one_is_called(script):
    owner = torch.nn.ModuleDict({"net": Model()})
    calls = calling(script, backwards=1)
    try:
        owner["net"](torch.ones(1))
        assert not calls.is_found or "__call__" not in vars(torch.nn.ModuleDict)
        script.backward()
        owner["net"](torch.ones(1))
        assert calls.is_found
    finally:
        script.recorder.detector.remove()
    assert "__call__" not in vars(Model)
    assert "__call__" not in vars(torch.nn.ModuleDict)


def test_the_search_for_modules_is_told_as_time_that_is_not_the_scripts(script, monkeypatch):
    def search(_depth):
        time.sleep(0.02)
        return set()

    monkeypatch.setattr("stepscope.capture.steps.timed_calls._classes_of_modules", search)
    for _ in range(6):
        script.step()
    assert len(script.listener.steps.own_ns) == 3  # at the first, second and fourth pass
    assert min(script.listener.steps.own_ns) >= 20_000_000


@pytest.mark.parametrize("goes_on", [True, False])
def test_the_end_of_the_first_epoch_is_told_from_the_evaluation_after_it(script, goes_on):
    script.step()
    script.step()
    data = Data(script.train)
    data._workers = ["a process"]
    script.recorder.epoch_ended(data, 30_000_000)
    script.batch(script.other)
    assert script.count("the end of an epoch") == 0  # nobody knows yet what follows
    if goes_on:
        script.step()
    else:
        script.recorder.finish()
    told = [one for one in script.listener.told if one.startswith(("the end", "restart"))]
    assert told == ["the end of an epoch", "restart"]


def test_a_training_without_modules_is_looked_at_a_few_times_only(script, monkeypatch):
    looks = []
    monkeypatch.setattr(
        "stepscope.capture.steps.timed_calls._classes_of_modules",
        lambda depth: looks.append(depth) or set(),
    )
    calls = calling(script, backwards=200)
    assert looks == [0, 1, 2]
    assert not calls.is_found


def test_samples_and_tokens_of_steps(script):
    batch = {"input_ids": torch.ones(4, 8)}
    script.fetch = script.recorder.detector.loaders.around_fetch(lambda _: batch)

    def take(count, data=script.train, **more):
        for _ in range(count):
            script.fetch(Data(data, **more))

    take(2)
    script.backward()
    script.learn()
    take(3, script.other)  # an evaluation
    take(1)
    script.backward()
    script.learn()
    script.backward()
    script.learn()  # on what was fetched ahead
    take(1, is_batched=False)
    script.backward()
    script.learn()
    assert script.listener.work == [(8, 64), (4, 32), (0, 0), (None, None)]


def test_a_class_may_be_copied_with_what_wraps_it(script):
    calls = calling(script, backwards=1)
    try:
        copied = pickle.loads(pickle.dumps(calls))
        called = copied._around_call(Model)
        assert called(Model(), torch.ones(1)) == 1
        assert (copied.calls, copied.is_found) == (0, False)
    finally:
        script.recorder.detector.remove()


def test_what_was_found_is_found_again_after_a_training_without_modules(script):
    model = Model()
    calls = calling(script, backwards=1)
    try:
        model(torch.ones(1))
        for _ in range(20):
            script.backward()
        assert not calls.is_found
        model(torch.ones(1))
        assert calls.is_found
    finally:
        script.recorder.detector.remove()
