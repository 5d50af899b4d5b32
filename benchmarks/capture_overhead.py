"""Cost of each option of a window for the steps inside it, as ratios of the median step.

A small transformer layer trains on the CPU, in one thread. Times are the CPU time of that thread,
or wall time with --wall. Every round runs all variants in turn, so that they run under the same
conditions. Prints the median over rounds of the ratio to the bare loop.

    python benchmarks/capture_overhead.py [--rounds 5] [--steps 30] [--wall]
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

import stepscope

clock = time.thread_time
"""CPU time of the training thread: on a shared machine, wall time includes other processes."""

WAITING: dict[str, Any] = {"wait": 10**9}
RECORDING: dict[str, Any] = {"wait": 0, "warmup": 3, "repeat": 1}
VARIANTS: dict[str, Mapping[str, Any] | None] = {
    "bare loop": None,
    "enabled=False": {"enabled": False},
    "armed and waiting, step_record=False": {**WAITING, "step_record": False},
    "step record (the default while waiting)": WAITING,
    "window: plain": RECORDING,
    "window: record_shapes": {**RECORDING, "record_shapes": True},
    "window: profile_memory": {**RECORDING, "profile_memory": True},
    "window: with_flops": {**RECORDING, "with_flops": True},
    "window: with_modules": {**RECORDING, "with_modules": True},
    "window: with_stack": {**RECORDING, "with_stack": True},
    "window: shapes, memory, flops, modules, stack": {
        **RECORDING,
        "record_shapes": True,
        "profile_memory": True,
        "with_flops": True,
        "with_modules": True,
        "with_stack": True,
    },
}


class Training:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.batch = torch.randn(4, 32, 64)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(self.batch).square().mean().backward()
        self.optimizer.step()


def median_step(moments: Sequence[float]) -> float:
    return statistics.median(after - before for before, after in itertools.pairwise(moments))


def run(training: Training, options: Mapping[str, Any] | None, steps: int, directory: str) -> float:
    """Median step in seconds; of the recorded steps if there is a window."""
    moments: list[float] = []
    if options is None:
        for _ in range(steps):
            moments.append(clock())
            training.step()
        moments.append(clock())
        return median_step(moments)
    options = {"output_dir": directory, "activities": "cpu", "active": steps + 1, **options}
    warmup = options.get("warmup", 0) if options.get("wait") == 0 else 0
    with stepscope.Profiler(**options) as profiler:
        for _ in range(warmup):
            training.step()
            profiler.step()
        for _ in range(steps):
            moments.append(clock())
            training.step()
            profiler.step()
        moments.append(clock())
    return median_step(moments)


def main() -> None:
    global clock  # noqa: PLW0603 - one clock for the whole run
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--wall", action="store_true")
    options = parser.parse_args()
    if options.wall:
        clock = time.perf_counter
    torch.set_num_threads(1)
    logging.getLogger("stepscope").setLevel(logging.ERROR)
    os.environ.setdefault("KINETO_LOG_LEVEL", "5")
    training = Training()
    run(training, None, 20, "")
    ratios: dict[str, list[float]] = {name: [] for name in VARIANTS}
    bare_ms: list[float] = []
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory() as directory:
            seconds = {
                name: run(training, variant, options.steps, directory)
                for name, variant in VARIANTS.items()
            }
        bare_ms.append(seconds["bare loop"] * 1000)
        for name in VARIANTS:
            ratios[name].append(seconds[name] / seconds["bare loop"])
        print(f"round {number + 1} of {options.rounds}", flush=True)
    print(f"\nbare step {statistics.median(bare_ms):.2f} ms; ratio of the median step to it")
    for name, values in ratios.items():
        print(f"{name:48}{statistics.median(values):8.3f}   ({min(values):.3f}–{max(values):.3f})")


if __name__ == "__main__":
    main()
