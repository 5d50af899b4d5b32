"""Real recorded runs of every kind: all answers about a run state the step of its record."""

from __future__ import annotations

import time

import pytest

torch = pytest.importorskip("torch")

from tests.support.one_step import check_run  # noqa: E402 - they need torch
from tests.support.trainings import Samples, Training, loader  # noqa: E402

import stepscope  # noqa: E402

ONE_WINDOW = {"skip_first": 4, "wait": 1, "warmup": 1, "active": 3, "repeat": 1}


def _plain(profiler, training):
    for _ in range(20):
        training.backward(torch.randn(64, 256))
        training.update()
        profiler.step()


def _watched(profiler, training):
    for batch in profiler.watch(loader(Samples(20, delay_s=0.0003, every=3))):
        training.backward(batch)
        training.update()


def _bursts_of_workers(profiler, training):
    for batch in profiler.watch(loader(Samples(20, delay_s=0.001), workers=2)):
        training.backward(batch)
        training.update()


def _accumulation(profiler, training):
    batches = iter(loader(Samples(60)))
    for _ in range(20):
        for _ in range(3):
            training.backward(next(batches))
        training.update()
        profiler.step()


def _phases_and_a_stall(profiler, training):
    for number in range(20):
        with profiler.phase("metrics"):
            time.sleep(0.3 if number == 15 else 0.002)
        training.backward(torch.randn(64, 256))
        training.update()
        profiler.step()


def _a_slow_first_step(profiler, training):
    time.sleep(0.5)
    _plain(profiler, training)


def _without_optimizer(profiler, training):
    for _ in range(20):
        training.evaluate([torch.randn(64, 256)] * 2)
        profiler.step()


def _few_steps(profiler, training):
    """All but two steps are in the window: then recorded steps count as steady, too."""
    for _ in range(10):
        training.backward(torch.randn(64, 256))
        training.update()
        profiler.step()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "loop",
    [
        _plain,
        _watched,
        _bursts_of_workers,
        _accumulation,
        _phases_and_a_stall,
        _a_slow_first_step,
        _without_optimizer,
        _few_steps,
    ],
)
def test_all_answers_state_the_records_step(tmp_path, loop):
    with stepscope.Profiler(output_dir=tmp_path, activities="cpu", **ONE_WINDOW) as profiler:
        loop(profiler, Training())
    (run,) = tmp_path.iterdir()
    shown = check_run(run).shown
    assert shown.steps is not None
    assert shown.window is not None
    assert shown.window_step_ns != shown.step_ns
