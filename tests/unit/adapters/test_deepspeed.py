"""Following an engine: what is told to the capture, and that the engine stays what it was."""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import logging
import sys
from types import ModuleType, SimpleNamespace

import pytest

import stepscope
from stepscope.adapters.deepspeed import EngineWatch, follow, see_memory_usage
from stepscope.adapters.options.dialects import find_dialect
from stepscope.capture.options.option import IN_CODE
from stepscope.errors import UsageError


class Engine:
    """Counts as DeepSpeed's engine does."""

    def __init__(self, accumulation=2):
        self.accumulation = accumulation
        self.global_steps = self.micro_steps = 0
        self.training = True

    def forward(self, batch, scale=1):
        return batch * scale

    def __call__(self, *arguments, **keywords):
        return self.forward(*arguments, **keywords)

    def backward(self, loss):
        if loss < 0:
            raise ValueError("theirs")
        return loss

    def step(self):
        self.micro_steps += 1
        if self.micro_steps % self.accumulation == 0:
            self.global_steps += 1
        return "stepped"


class Pipeline(Engine):
    def train_batch(self, data):
        for batch in data:
            self.backward(self(batch))
            self.step()
        return sum(data)


class Listener:
    """Writes down what a profiler is told."""

    def __init__(self, step_unit="iteration"):
        self.told = []
        self.session = self
        self.engine = None
        self.watch_ends_steps = True
        self.records_windows = True
        self.before_end = []
        self.config = SimpleNamespace(
            enabled=True, deepspeed_flops=False, deepspeed_memory=False, step_unit=step_unit
        )

    def step(self):
        self.told.append("step")

    @contextlib.contextmanager
    def phase(self, name):
        self.told.append(f"+{name}")
        yield
        self.told.append(f"-{name}")

    def add_text(self, *_):
        raise AssertionError("there is nothing to write")


def watched(engine, listener):
    watch = EngineWatch(engine, listener)
    watch.attach()
    return watch


def train(engine, batches):
    for batch in batches:
        engine.backward(engine(batch, scale=2))
        assert engine.step() == "stepped"


MICRO = ["+forward", "-forward", "+backward", "-backward", "+optimizer", "-optimizer"]


def test_a_step_ends_where_the_engine_accumulated_enough():
    engine, listener = Engine(), Listener()
    watched(engine, listener)
    train(engine, [1, 2, 3, 4, 5])
    assert listener.told == [*MICRO, *MICRO, "step", *MICRO, *MICRO, "step", *MICRO]
    assert not listener.watch_ends_steps


def test_micro_batches_are_steps_where_that_is_the_unit():
    engine, listener = Engine(), Listener("micro-batch")
    watched(engine, listener)
    train(engine, [1, 2, 3])
    assert listener.told == [*MICRO, "step"] * 3


def test_a_forward_that_trains_nothing_is_an_evaluation():
    engine, listener = Engine(), Listener()
    watched(engine, listener)
    engine.training = False
    assert engine(3) == 3
    assert listener.told == ["+evaluation", "-evaluation"]


def test_a_pipelines_batch_is_one_step_whatever_it_calls_inside():
    engine, listener = Pipeline(accumulation=3), Listener()
    watched(engine, listener)
    assert engine.train_batch([1, 2, 3]) == 6
    assert listener.told == ["step"]


def test_what_the_engine_raises_reaches_the_training_and_the_next_step_is_seen():
    engine, listener = Engine(accumulation=1), Listener()
    watched(engine, listener)
    with pytest.raises(ValueError, match="theirs"):
        engine.backward(-1)
    train(engine, [1])
    assert listener.told[-1] == "step"
    assert listener.told.count("+backward") == 2


def test_at_the_end_the_engine_is_what_it_was():
    engine, listener = Pipeline(), Listener()
    watched(engine, listener)
    assert set(vars(engine)) >= {"forward", "backward", "step", "train_batch"}
    kept = engine.step
    (end,) = listener.before_end
    end()
    end()
    assert not set(vars(engine)) & {"forward", "backward", "step", "train_batch"}
    kept()
    assert listener.told == []
    assert engine.micro_steps == 1


def test_somebody_elses_wrapper_stays():
    engine, listener = Engine(), Listener()
    watch = watched(engine, listener)
    ours = engine.step
    engine.step = functools.partial(ours)
    watch.close()
    assert "step" in vars(engine)
    engine.step()
    assert listener.told == []


def test_what_cannot_be_followed_is_refused_and_what_is_off_is_left_alone():
    with pytest.raises(UsageError, match=r"deepspeed\.initialize"):
        follow(object(), stepscope.Profiler())
    with pytest.raises(UsageError, match="start the profiler"):
        follow(Engine(), stepscope.Profiler())
    engine = Engine()
    follow(engine, stepscope.Profiler(enabled=False))
    assert "step" not in vars(engine)


@pytest.mark.parametrize("level", [logging.WARNING, logging.INFO])
def test_its_memory_is_seen_at_every_level_of_its_logger(monkeypatch, level):
    """DeepSpeed 0.17 logs it with `info` to a logger that by default only takes warnings."""
    logger = logging.Logger("deepspeed", level)  # noqa: LOG001 - no other test sees it
    kept = logging.NullHandler()
    logger.addHandler(kept)

    def see(message, force):
        assert force
        logger.info(message)

    modules = {
        "deepspeed": ModuleType("deepspeed"),
        "deepspeed.runtime": ModuleType("deepspeed.runtime"),
        "deepspeed.runtime.utils": SimpleNamespace(see_memory_usage=see),
        "deepspeed.utils": SimpleNamespace(logger=logger),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    assert see_memory_usage("After forward of step 3") == "After forward of step 3\n"
    assert (logger.level, logger.handlers, logger.propagate) == (level, [kept], True)


@pytest.mark.parametrize(
    ("names", "typed"), [(IN_CODE, "deepspeed_memory"), (find_dialect("sfm").names, "--debug")]
)
def test_the_time_of_our_option_is_under_the_name_that_was_typed(monkeypatch, names, typed):
    listener = Listener()
    listener.config.deepspeed_memory = True
    listener.option_names = names
    listener.steps = SimpleNamespace(number=3)
    monkeypatch.setattr("stepscope.adapters.deepspeed.see_memory_usage", lambda _: "")
    watched(Engine(), listener)._see_memory("step")
    assert listener.told == [f"+stepscope option {typed}", f"-stepscope option {typed}"]


@pytest.fixture
def sfm_profiler(tmp_path, monkeypatch):
    """A profiler of SFM's flags, in a process whose engines are of the class above."""
    monkeypatch.chdir(tmp_path)
    module = ModuleType("deepspeed.runtime.engine")
    module.DeepSpeedEngine = type("DeepSpeedEngine", (Engine,), {})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr("stepscope.adapters.deepspeed.see_memory_usage", lambda _: "seen\n")
    parser = stepscope.add_arguments(argparse.ArgumentParser(), dialect="sfm")

    def made():
        args = parser.parse_args(["--profiling", "--debug"])
        return stepscope.Profiler.from_args(args, window_recorder="none", monitor=False)

    return module.DeepSpeedEngine, made


@pytest.mark.parametrize("engines", [0, 1, 2])
def test_an_engine_made_before_the_profiler_is_followed_if_it_is_the_only_one(
    engines, sfm_profiler, capsys, caplog
):
    kind, made = sfm_profiler
    there = [kind(accumulation=1) for _ in range(engines)]
    with made() as profiler:
        for number in range(engines):
            train(there[number], [1, 2])
        profiler.step()
    del there
    gc.collect()
    assert capsys.readouterr().out.count("seen") == (6 if engines == 1 else 0)
    assert ("2 DeepSpeed engines, and none is followed" in caplog.text) == (engines == 2)
    assert ("--debug printed nothing" in caplog.text) == (engines != 1)
