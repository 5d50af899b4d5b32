"""The pause of the training at the end of a window, compared with torch's stock handler.

Runs the same work in the same process, in turns: torch.profiler with
`tensorboard_trace_handler(use_gzip=True)` and `key_averages()` in its handler, as guides recommend,
and stepscope. "Beyond stop" is the pause minus torch's own time to stop.

    python benchmarks/capture_pause.py [--operators 20000] [--rounds 3]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import stepscope

Way = Callable[[int, torch.Tensor, str], tuple[float, float]]
"""Given a count of operators, a tensor and a folder, the pause and torch's part of it, in s."""

CPU = [torch.profiler.ProfilerActivity.CPU]


def work(count: int, tensor: torch.Tensor) -> None:
    for _ in range(count):
        tensor.add(1)


def pause_of(profiler: Any, count: int, tensor: torch.Tensor) -> float:
    """How long the end of a step takes that ends a window, in seconds."""
    work(10, tensor)
    profiler.step()
    work(count, tensor)
    started = time.perf_counter()
    profiler.step()
    return time.perf_counter() - started


def stock(count: int, tensor: torch.Tensor, directory: str) -> tuple[float, float]:
    """(pause, torch's own part of it) of the stock profiler, in seconds."""
    write = torch.profiler.tensorboard_trace_handler(directory, use_gzip=True)
    handler_s = 0.0

    def handler(profiler: torch.profiler.profile) -> None:
        nonlocal handler_s
        started = time.perf_counter()
        write(profiler)
        profiler.key_averages().table(sort_by="self_cpu_time_total")
        handler_s = time.perf_counter() - started

    with torch.profiler.profile(
        activities=CPU,
        schedule=torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=1),
        on_trace_ready=handler,
    ) as profiler:
        pause_s = pause_of(profiler, count, tensor)
    return pause_s, pause_s - handler_s


def ours(count: int, tensor: torch.Tensor, directory: str) -> tuple[float, float]:
    with stepscope.Profiler(
        output_dir=directory, wait=0, warmup=1, active=1, activities="cpu"
    ) as profiler:
        pause_s = pause_of(profiler, count, tensor)
    assert profiler.run_path is not None
    (window,) = stepscope.open_run(profiler.run_path).windows
    record = window.record
    assert record is not None
    assert record.state == "complete", record.reason
    return pause_s, record.stop_ns / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operators", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    tensor = torch.ones(4)
    ways: dict[str, Way] = {
        "torch: gzip handler + key_averages": stock,
        "stepscope": ours,
    }
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for number in range(options.rounds):
        for name, way in ways.items():
            with tempfile.TemporaryDirectory() as directory:
                measured[name].append(way(options.operators, tensor, str(Path(directory))))
        print(f"round {number + 1} of {options.rounds}", flush=True)
    reference = statistics.median(pause - stop for pause, stop in measured[next(iter(ways))])
    print(f"\n{options.operators} operators in the window, medians of {options.rounds} rounds")
    print(f"{'':38}{'pause':>10}{'stop':>10}{'beyond stop':>13}{'times less':>12}")
    for name, values in measured.items():
        pause = statistics.median(pause for pause, _ in values)
        stop = statistics.median(stop for _, stop in values)
        beyond = statistics.median(pause - stop for pause, stop in values)
        print(
            f"{name:38}{pause * 1000:8.0f}ms{stop * 1000:8.0f}ms{beyond * 1000:11.1f}ms"
            f"{reference / beyond:11.1f}x"
        )


if __name__ == "__main__":
    main()
