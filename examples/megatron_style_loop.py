"""A training loop like Megatron's: its flags, its timers as phases, start, step and stop.

    python examples/megatron_style_loop.py --profile --use-pytorch-profiler \\
        --profile-step-start 5 --profile-step-end 7 --tensorboard-dir profiles

`Timers` stands in for what Megatron's `get_timers()` returns.
"""

from __future__ import annotations

import argparse
import time

import torch

import stepscope
from stepscope.adapters.megatron import follow_timers


class Timer:
    """Adds up the time between `start` and `stop`."""

    def __init__(self):
        self.seconds = 0.0

    def start(self):
        self.began = time.perf_counter()

    def stop(self):
        self.seconds += time.perf_counter() - self.began


class Timers:
    """A timer for each name."""

    def __init__(self):
        self.by_name, self.log_levels = {}, {}

    def __call__(self, name, log_level=2):
        self.log_levels.setdefault(name, log_level)
        return self.by_name.setdefault(name, Timer())


def train_step(model, optimizer, data, timers):
    timers("forward-backward", log_level=1).start()
    optimizer.zero_grad()
    timers("forward-compute", log_level=2).start()
    timers("batch-generator", log_level=2).start()
    batch = next(data)
    timers("batch-generator").stop()
    loss = model(batch).square().mean()
    timers("forward-compute").stop()
    timers("backward-compute", log_level=2).start()
    loss.backward()
    timers("backward-compute").stop()
    timers("forward-backward").stop()
    timers("optimizer", log_level=1).start()
    optimizer.step()
    timers("optimizer").stop()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--train-iters", type=int, default=10)
    parser.add_argument("--profile", action="store_true")
    stepscope.add_arguments(parser, dialect="megatron-lm")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = (torch.randn(16, 64) for _ in range(args.train_iters))
    timers = Timers()

    profiler = stepscope.Profiler.from_args(args)
    profiler.start()
    follow_timers(timers, profiler)
    timers("interval-time", log_level=0).start()
    for _ in range(args.train_iters):
        train_step(model, optimizer, data, timers)
        profiler.step()
    timers("interval-time").stop()
    profiler.stop()


if __name__ == "__main__":
    main()
