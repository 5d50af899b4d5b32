"""What is sent to Ray's workers, run here as they run it: in a thread, from a copy."""

from __future__ import annotations

import inspect
import pickle
import threading

import pytest
import torch
from tests.support.training import SmallTraining, bare_losses, batches

from stepscope import open_run
from stepscope.adapters.ray import current_profiler, profiled_worker
from stepscope.capture.options.option import ConfigError
from stepscope.errors import UsageError


def with_config(config, profiler):
    training = SmallTraining()
    for batch in profiler.watch(batches(config["steps"])):
        training.step(batch)
    return training.losses


def without_config():
    training = SmallTraining()
    for batch in batches(4):
        training.step(batch)
        current_profiler().count(samples=8)
    return training.losses


def by_itself(config, profiler):
    """Two optimizers, and a step that the loop ends."""
    weights = [torch.ones(2, requires_grad=True) for _ in range(2)]
    optimizers = [torch.optim.SGD([weight], lr=0.1) for weight in weights]
    for _ in range(config["steps"]):
        for weight, optimizer in zip(weights, optimizers, strict=True):
            weight.sum().backward()
            optimizer.step()
        if config["ends"]:
            profiler.step()


def within_backward(config, profiler):
    """Each parameter has an optimizer of its own, which steps as soon as the gradient is there."""
    weights = [torch.ones(16, 16, requires_grad=True) for _ in range(3)]
    optimizers = {one: torch.optim.SGD([one], lr=0.01) for one in weights}

    def learn(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for one in optimizers:
        one.register_post_accumulate_grad_hook(learn)
    for inputs, _ in profiler.watch(batches(config["steps"])):
        for weight in weights:
            inputs = (inputs @ weight).tanh()
        inputs.square().mean().backward()
    return [profiler.session.steps.number, len(optimizers)]


def broken(config):
    SmallTraining().step(next(batches(1)))
    raise ValueError("theirs")


def in_a_worker(function, *arguments):
    """Call a copy of the function in a thread, as Ray does; returns or raises what it does."""
    copy, results = pickle.loads(pickle.dumps(function)), []

    def work():
        try:
            results.append(copy(*arguments))
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    (result,) = results
    if isinstance(result, Exception):
        raise result
    return result


def the_rank(folder):
    (rank,) = open_run(folder).ranks
    return rank


def test_the_optimizers_steps_are_counted_in_the_workers_thread(tmp_path):
    worker = profiled_worker(with_config, output_dir=tmp_path, wait=1, warmup=1, active=2)
    assert in_a_worker(worker, {"steps": 6}) == bare_losses(6)
    rank = the_rank(tmp_path)
    assert [step.step for step in rank.steps] == list(range(6))
    assert rank.steps[2].data_wait_ns > 0
    assert rank.manifest.step_unit == "optimizer step"
    assert rank.windows[0].record.first_step == 2
    assert rank.windows[0].record.state == "complete"


def test_ray_sees_the_parameters_that_it_fills_itself(tmp_path):
    seen = [
        list(inspect.signature(profiled_worker(function, output_dir=tmp_path)).parameters)
        for function in (with_config, without_config)
    ]
    assert seen == [["config"], []]
    assert profiled_worker(with_config, output_dir=tmp_path).__name__ == "with_config"


def test_a_function_that_asks_for_the_profiler_itself(tmp_path):
    worker = profiled_worker(without_config, output_dir=tmp_path)
    assert in_a_worker(worker) == bare_losses(4)
    assert [step.samples for step in the_rank(tmp_path).steps][1:] == [8, 8, 8]
    assert not current_profiler().config.enabled


@pytest.mark.parametrize(("step_on", "ends"), [("optimizer", False), ("loop", True)])
def test_of_two_optimizers_the_first_ends_steps_or_the_loop_does(tmp_path, step_on, ends):
    worker = profiled_worker(by_itself, output_dir=tmp_path, step_on=step_on)
    in_a_worker(worker, {"steps": 5, "ends": ends})
    assert len(the_rank(tmp_path).steps) == 5


@pytest.mark.parametrize("options", [{}, {"auto_phases": True}], ids=["plain", "with phases"])
def test_optimizers_that_step_within_the_backward_pass_end_one_step(tmp_path, options):
    worker = profiled_worker(
        within_backward, output_dir=tmp_path, wait=1, warmup=1, active=2, **options
    )
    steps, optimizers = in_a_worker(worker, {"steps": 6})
    assert steps == 6
    assert optimizers > 1
    rank = the_rank(tmp_path)
    assert [step.step for step in rank.steps] == list(range(6))
    assert rank.windows[0].record.state == "complete"
    assert all(("backward" in step.phases) == bool(options) for step in rank.steps)


def test_an_error_reaches_ray_and_leaves_torch_as_it_was(tmp_path):
    with pytest.raises(ValueError, match="theirs"):
        in_a_worker(profiled_worker(broken, output_dir=tmp_path), {})
    assert the_rank(tmp_path).manifest.state == "failed"
    assert the_rank(tmp_path).manifest.ended.startswith("ValueError")
    from torch.optim import optimizer

    assert not optimizer._global_optimizer_post_hooks


def test_what_cannot_work_is_refused_before_anything_is_sent(tmp_path):
    with pytest.raises(ConfigError, match="absolute"):
        profiled_worker(with_config)
    with pytest.raises(ConfigError, match="active"):
        profiled_worker(with_config, output_dir=tmp_path, active=0)
    with pytest.raises(UsageError, match="step_on"):
        profiled_worker(with_config, output_dir=tmp_path, step_on="epoch")
