"""Cost of a step while no window is open: ratios of step time, medians of interleaved runs.

The loops take turns in one process, so that they run under the same conditions: bare, with the
profiler armed and waiting but without its step record, and with the step record; then a loop that
uses torch: bare, with the step record, and with phases detected from torch. Times are the CPU time
of the training thread, or wall time with --wall.

    python benchmarks/capture_step_record.py [--rounds 15] [--steps 100] [--step-ms 5] [--wall]
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

import stepscope

clock = time.thread_time
"""CPU time of the training thread: on a shared machine, wall time includes other processes."""


Loop = Callable[[int, float, str], float]
"""Given steps, the length of each and a folder, the median step; all in seconds."""


def spin(seconds: float) -> None:
    """Work of a fixed duration that does not sleep, because sleeping would hide the cost."""
    end = clock() + seconds
    while clock() < end:
        pass


def bare(steps: int, seconds: float, _directory: str) -> float:
    moments = [clock()]
    for _ in range(steps):
        spin(seconds)
        moments.append(clock())
    return median_step(moments)


def median_step(moments: Sequence[float]) -> float:
    """The median, because on a shared machine a mean includes other processes."""
    return statistics.median(after - before for before, after in itertools.pairwise(moments))


def profiled(step_record: bool, phases: bool) -> Loop:
    def run(steps: int, seconds: float, directory: str) -> float:
        options: dict[str, Any] = {"wait": 10**9, "repeat": 1, "step_record": step_record}
        with stepscope.Profiler(output_dir=directory, **options) as profiler:
            moments = [clock()]
            for _ in range(steps):
                if phases:
                    with profiler.phase("forward"):
                        spin(seconds / 2)
                    with profiler.phase("backward"):
                        spin(seconds / 2)
                else:
                    spin(seconds)
                profiler.step()
                moments.append(clock())
            return median_step(moments)

    return run


class Training:
    """The calls from which phases are detected, around work of a fixed duration."""

    def __init__(self) -> None:
        self.weight = torch.ones(8, requires_grad=True)
        self.optimizer = torch.optim.SGD([self.weight], lr=0.0)
        # Without workers, so that the loader runs in this thread.
        rows = torch.utils.data.TensorDataset(torch.ones(1000, 8))
        self.loader = torch.utils.data.DataLoader(rows, batch_size=1)

    def run(self, steps: int, seconds: float, step_ends: Callable[[], object]) -> float:
        batches = itertools.islice(itertools.cycle(self.loader), steps)
        moments = [clock()]
        for (batch,) in batches:
            spin(seconds)
            (batch * self.weight).sum().backward()
            self.optimizer.step()
            step_ends()
            moments.append(clock())
        return median_step(moments)


def trained(training: Training, auto_phases: bool | None) -> Loop:
    def run(steps: int, seconds: float, directory: str) -> float:
        if auto_phases is None:
            return training.run(steps, seconds, lambda: None)
        with stepscope.Profiler(
            output_dir=directory, wait=10**9, auto_phases=auto_phases
        ) as profiler:
            return training.run(steps, seconds, profiler.step)

    return run


def main() -> None:
    global clock  # noqa: PLW0603 - one clock for the whole run
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--step-ms", type=float, default=5.0)
    parser.add_argument("--wall", action="store_true")
    options = parser.parse_args()
    if options.wall:
        clock = time.perf_counter
    torch.set_num_threads(1)
    training = Training()
    loops: dict[str, Loop] = {
        "bare": bare,
        "armed and waiting, no step record": profiled(False, False),
        "step record": profiled(True, False),
        "step record, two phases": profiled(True, True),
        "bare, with torch": trained(training, None),
        "with torch: step record": trained(training, False),
        "with torch: auto_phases": trained(training, True),
    }
    ratios: dict[str, list[float]] = {name: [] for name in loops}
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(options.rounds):
            seconds = {
                name: loop(options.steps, options.step_ms / 1000, directory)
                for name, loop in loops.items()
            }
            for name in loops:
                base = "bare, with torch" if "with torch" in name else "bare"
                ratios[name].append(seconds[name] / seconds[base])
    print(f"step of {options.step_ms:g} ms, {options.rounds} rounds of {options.steps} steps")
    print(f"{'':36}{'median ratio':>14}{'lowest':>10}{'highest':>10}")
    for name, values in ratios.items():
        median = statistics.median(values)
        print(f"{name:36}{median:14.4f}{min(values):10.4f}{max(values):10.4f}")


if __name__ == "__main__":
    main()
