"""What a steady step costs through each door, outside windows: with it and without it, in turns.

Each door drives the same small training in this process. Blocks of steps with the door alternate
with blocks without it, so that a busy machine slows both alike. The ratio is the median over the
blocks of the ratio of their median steps; the first steps of a block are left out. A second ratio
counts only the CPU time of the training thread, which other processes hardly affect.

    python benchmarks/door_overhead.py [--blocks 10] [--steps 100] [--milliseconds 5]
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator

import torch

import stepscope
from stepscope.adapters.callbacks.training import TrainingRecorder, prototype_of
from stepscope.adapters.torch_profiler import profile
from stepscope.capture.together.ranks import RankIdentity

_LEFT_OUT = 30
"""Steps at the start of a block: the door opens files and starts a thread."""
QUIET = {"wait": 10**9, "announce": False, "repeat": 1}


class Training:
    """A small network whose step takes about the wanted time."""

    def __init__(self, milliseconds: float) -> None:
        self.model = torch.nn.Sequential(
            torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8)
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.batch = torch.randn(64, 128)
        self.rounds = 1
        times = []
        for _ in range(300):
            started = time.perf_counter()
            self.step()
            times.append(time.perf_counter() - started)
        one = statistics.median(times[100:])
        self.rounds = max(1, round(milliseconds / 1000 / one))

    def step(self) -> None:
        for _ in range(self.rounds):
            loss = self.model(self.batch).square().mean()
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


@contextlib.contextmanager
def own(folder: str, **options: object) -> Iterator[Callable[[], object]]:
    with stepscope.Profiler(output_dir=folder, **QUIET, **options) as profiler:
        yield profiler.step


@contextlib.contextmanager
def drop_in(_: str) -> Iterator[Callable[[], object]]:
    schedule = torch.profiler.schedule(wait=10**9, warmup=1, active=1)
    with profile(activities=[torch.profiler.ProfilerActivity.CPU], schedule=schedule) as profiler:
        yield profiler.step


@contextlib.contextmanager
def callback(folder: str) -> Iterator[Callable[[], object]]:
    recorder = TrainingRecorder(prototype_of(None, {"output_dir": folder, **QUIET}))
    recorder.begin(RankIdentity())
    recorder.forward()

    def end() -> None:
        recorder.step_ended()
        recorder.forward()

    yield end
    recorder.finish()


DOORS: dict[str, Callable[[str], contextlib.AbstractContextManager[Callable[[], object]]]] = {
    "`Profiler.step`, flags, `profiled`": own,
    "the same with `auto_phases`": lambda folder: own(folder, auto_phases=True),
    "the same with `memory_log`": lambda folder: own(folder, memory_log=True),
    "`adapters.torch_profiler`": drop_in,
    "callbacks of Trainers and Lightning": callback,
}


def block(training: Training, steps: int, end_step: Callable[[], object]) -> tuple[float, float]:
    """The median wall time and CPU time of a step, in milliseconds."""
    times, needed = [], []
    for _ in range(steps):
        started, started_cpu = time.perf_counter(), time.thread_time()
        training.step()
        end_step()
        needed.append((time.thread_time() - started_cpu) * 1000)
        times.append((time.perf_counter() - started) * 1000)
    return statistics.median(times[_LEFT_OUT:]), statistics.median(needed[_LEFT_OUT:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--milliseconds", type=float, default=5.0)
    args = parser.parse_args()
    logging.getLogger("stepscope").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    training = Training(args.milliseconds)
    print("| Door | CPU time of a step | CPU time, ratio | Added | Wall time, ratio |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name, door in DOORS.items():
            pairs = []
            for _ in range(args.blocks):
                bare = block(training, args.steps, bool)
                with door(folder) as end_step:
                    pairs.append((block(training, args.steps, end_step), bare))
            wall, cpu = (
                statistics.median(ours[at] / bare[at] for ours, bare in pairs) for at in (0, 1)
            )
            cpu_ms = statistics.median(bare[1] for _, bare in pairs)
            added_us = statistics.median((ours[1] - bare[1]) * 1000 for ours, bare in pairs)
            print(f"| {name} | {cpu_ms:.1f} ms | {cpu:.3f} | {added_us:.0f} µs | {wall:.2f} |")


if __name__ == "__main__":
    main()
