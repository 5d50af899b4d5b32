"""What a steady step costs through each integration, outside windows: with and without it.

Each integration drives the same small training in this process. Blocks of steps with it alternate
with blocks without it, so that a busy machine slows both alike. The ratio is the median over the
blocks of the ratio of their median steps; the first steps of a block are left out. A second ratio
counts only the CPU time of the training thread, which other processes hardly affect.

    python benchmarks/integration_overhead.py [--blocks 10] [--steps 100] [--milliseconds 5]
        [--only run]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import stepscope
from stepscope.adapters.callbacks.training import CallbackBase
from stepscope.adapters.deepspeed import follow
from stepscope.adapters.megatron import follow_timers
from stepscope.adapters.ray import OptimizerSteps
from stepscope.adapters.script.hooks import ScriptRecorder
from stepscope.adapters.torch_profiler import profile
from stepscope.capture.ranks import RankIdentity

_LEFT_OUT = 30
"""Steps at the start of a block: the integration opens files and starts a thread."""
QUIET: dict[str, Any] = {"wait": 10**9, "announce": False, "repeat": 1}


class Training:
    """A network of a few layers whose step, with one backward pass, takes about the wanted time.

    It has the methods of an engine as well, so that the integration for engines can be measured.
    """

    def __init__(self, milliseconds: float) -> None:
        layers = [part for _ in range(4) for part in (torch.nn.Linear(256, 256), torch.nn.ReLU())]
        self.model = torch.nn.Sequential(*layers, torch.nn.Linear(256, 8))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.training = True
        self.global_steps = 0
        size = 16
        while self._milliseconds(size) < milliseconds:
            size += max(8, size // 4)

    def _milliseconds(self, size: int) -> float:
        self.batch = torch.randn(size, 256)
        times = []
        for _ in range(60):
            started = time.perf_counter()
            self.whole_step()
            times.append(time.perf_counter() - started)
        return statistics.median(times[20:]) * 1000

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.model(batch).square().mean()
        return loss

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.global_steps += 1

    def whole_step(self) -> None:
        self.backward(self.forward(self.batch))
        self.step()

    def ending(self, end_step: Callable[[], object]) -> Callable[[], None]:
        """A step that a call ends."""

        def step() -> None:
            self.whole_step()
            end_step()

        return step


Integration = Callable[[Training, str], contextlib.AbstractContextManager[Callable[[], None]]]
"""Given the training and a folder, a context with the integration's own step of the training."""


def own(**options: Any) -> Integration:
    @contextlib.contextmanager
    def integration(training: Training, folder: str) -> Iterator[Callable[[], None]]:
        with stepscope.Profiler(output_dir=folder, **QUIET, **options) as profiler:
            yield training.ending(profiler.step)

    return integration


@contextlib.contextmanager
def watch(training: Training, folder: str) -> Iterator[Callable[[], None]]:
    with stepscope.Profiler(output_dir=folder, **QUIET) as profiler:
        batches = profiler.watch(itertools.repeat(training.batch))

        def step() -> None:
            next(batches)
            training.whole_step()

        yield step


@contextlib.contextmanager
def drop_in(training: Training, _: str) -> Iterator[Callable[[], None]]:
    schedule = torch.profiler.schedule(wait=10**9, warmup=1, active=1)
    with profile(activities=[torch.profiler.ProfilerActivity.CPU], schedule=schedule) as profiler:
        yield training.ending(profiler.step)


@contextlib.contextmanager
def callback(training: Training, folder: str) -> Iterator[Callable[[], None]]:
    recorder = CallbackBase(output_dir=folder, **QUIET)._recorder
    recorder.begin(RankIdentity())

    def step() -> None:
        recorder.forward()
        training.whole_step()
        recorder.step_ended()

    yield step
    recorder.finish()


@contextlib.contextmanager
def engine(training: Training, folder: str) -> Iterator[Callable[[], None]]:
    with stepscope.Profiler(output_dir=folder, **QUIET) as profiler:
        follow(training, profiler)
        yield training.whole_step


class Timer:
    """A timer as in Megatron's training loop, which others may listen to."""

    def start(self) -> None:
        """Start the timer."""

    def stop(self) -> None:
        """Stop the timer."""


class Timers:
    """Megatron's timers, by name."""

    def __init__(self) -> None:
        self._timers: dict[str, Timer] = {}

    def __call__(self, name: str) -> Timer:
        return self._timers.setdefault(name, Timer())


@contextlib.contextmanager
def timers(training: Training, folder: str) -> Iterator[Callable[[], None]]:
    """The four timers around the parts of a step."""
    timers = Timers()
    with stepscope.Profiler(output_dir=folder, **QUIET) as profiler:
        follow_timers(timers, profiler)

        def step() -> None:
            timers("batch-generator").start()
            timers("batch-generator").stop()
            timers("forward-compute").start()
            loss = training.forward(training.batch)
            timers("forward-compute").stop()
            timers("backward-compute").start()
            training.backward(loss)
            timers("backward-compute").stop()
            timers("optimizer").start()
            training.step()
            timers("optimizer").stop()
            profiler.step()

        yield step


@contextlib.contextmanager
def worker(training: Training, folder: str) -> Iterator[Callable[[], None]]:
    """What a worker of Ray runs. Ray itself takes no part in a step."""
    with stepscope.Profiler(output_dir=folder, **QUIET) as profiler:
        steps = OptimizerSteps(profiler)
        steps.detector.install(fetches=False)
        yield training.whole_step
        steps.detector.remove()


@contextlib.contextmanager
def launched(training: Training, folder: str) -> Iterator[Callable[[], None]]:
    recorder = ScriptRecorder({"output_dir": folder, **QUIET}, "optimizer", Path(folder))
    recorder.detector.install()
    yield training.whole_step
    recorder.detector.remove()
    recorder.finish()


@contextlib.contextmanager
def accelerated(training: Training, folder: str) -> Iterator[Callable[[], None]]:
    from accelerate import Accelerator

    from stepscope.adapters.accelerate import AccelerateProfiler

    Accelerator(cpu=True)
    with AccelerateProfiler(output_dir=folder, **QUIET) as profiler:
        batches = profiler.watch(itertools.repeat(training.batch))

        def step() -> None:
            next(batches)
            training.whole_step()

        yield step


INTEGRATIONS: dict[str, Integration] = {
    "`Profiler.step`, flags, `profiled`, torchtune, torchtitan": own(),
    "the same with `auto_phases`": own(auto_phases=True),
    "the same with `memory_log`": own(memory_log=True),
    "`Profiler.watch`": watch,
    "`adapters.torch_profiler`": drop_in,
    "callbacks of transformers, TRL and Lightning": callback,
    "`AccelerateProfiler`": accelerated,
    "`follow`, for DeepSpeed engines": engine,
    "`follow_timers`, for Megatron's timers": timers,
    "`profiled_worker`, in a worker of Ray": worker,
    "`stepscope run`": launched,
}


def block(steps: int, step: Callable[[], object]) -> tuple[float, float]:
    """The median wall time and CPU time of a step, in milliseconds."""
    times, needed = [], []
    for _ in range(steps):
        started, started_cpu = time.perf_counter(), time.thread_time()
        step()
        needed.append((time.thread_time() - started_cpu) * 1000)
        times.append((time.perf_counter() - started) * 1000)
    return statistics.median(times[_LEFT_OUT:]), statistics.median(needed[_LEFT_OUT:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--milliseconds", type=float, default=5.0)
    parser.add_argument("--only", default="", help="integrations whose name contains this")
    args = parser.parse_args()
    logging.getLogger("stepscope").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    training = Training(args.milliseconds)
    print("| Integration | CPU time of a step | CPU time, ratio | Added | Wall time, ratio |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name, integration in INTEGRATIONS.items():
            if args.only not in name:
                continue
            pairs = []
            try:
                for _ in range(args.blocks):
                    bare = block(args.steps, training.whole_step)
                    with (
                        contextlib.redirect_stderr(io.StringIO()),
                        integration(training, folder) as step,
                    ):
                        pairs.append((block(args.steps, step), bare))
            except ImportError as error:
                print(f"| {name} | not measured: {error} |")
                continue
            wall, cpu = (
                statistics.median(ours[at] / bare[at] for ours, bare in pairs) for at in (0, 1)
            )
            cpu_ms = statistics.median(bare[1] for _, bare in pairs)
            added_us = statistics.median((ours[1] - bare[1]) * 1000 for ours, bare in pairs)
            print(f"| {name} | {cpu_ms:.1f} ms | {cpu:.3f} | {added_us:.0f} µs | {wall:.2f} |")


if __name__ == "__main__":
    main()
