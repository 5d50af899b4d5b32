"""What the parts of a GPU session share: arguments, a result that grows, a synchronised stopwatch.

A part is a script that `gpu_session.py` starts in a process of its own. It writes its result to
the file `--result` after each measurement, so that a part that is cut off leaves what it has.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")


class Result:
    """A JSON object in a file, complete after each change."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.values: dict[str, Any] = {}

    def put(self, **values: Any) -> None:
        """Add values and write all of them."""
        self.values.update(values)
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self.values, indent=1, default=str))
        temporary.replace(self._path)

    def attempt(self, name: str, measure: Callable[[], Any]) -> None:
        """Add what `measure` returns under `name`, or the error that it raises."""
        try:
            self.put(**{name: measure()})
        except Exception as error:  # noqa: BLE001 - one failed measurement leaves the others
            self.put(**{name: {"error": f"{type(error).__name__}: {str(error)[:500]}"}})


def parse(description: str | None, names: tuple[str, ...]) -> tuple[str, Path, Result]:
    """The name of the part, its directory, and its result."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("name", choices=names)
    parser.add_argument("--out", type=Path, required=True, help="directory for traces and such")
    parser.add_argument("--result", type=Path, required=True, help="JSON file that is written")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(8 if ON_GPU else 1)
    return options.name, options.out, Result(options.result)


def synchronise() -> None:
    """Wait for the GPU, if there is one."""
    if ON_GPU:
        torch.cuda.synchronize()


def seconds_of(work: Callable[[], object], repeats: int) -> float:
    """Wall seconds of one call: `repeats` calls between two synchronisations, divided."""
    synchronise()
    began = time.perf_counter()
    for _ in range(repeats):
        work()
    synchronise()
    return (time.perf_counter() - began) / repeats


def measured_step_ns(
    step: Callable[[], object], seconds: float = 0.4, blocks: int = 3
) -> list[int]:
    """Nanoseconds per step of each block, in a steady state.

    The first calls warm up and give the number of steps that a block needs to last `seconds`.
    """
    for _ in range(20 if ON_GPU else 3):
        step()
    estimate = seconds_of(step, 3)
    repeats = max(3, min(1000, int(seconds / max(estimate, 1e-6))))
    return [round(seconds_of(step, repeats) * 1e9) for _ in range(blocks)]


def median(values: list[int]) -> int:
    """The median as an integer."""
    return round(statistics.median(values))


def limit_gpu_memory(limit_bytes: int) -> None:
    """Let torch take only this much of the GPU."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(limit_bytes / total)


def environment_words() -> dict[str, Any]:
    """The variables that decide how the allocator and CUDA behave."""
    prefixes = ("PYTORCH_", "TORCH_", "CUDA_", "NVIDIA_")
    return {name: value for name, value in os.environ.items() if name.startswith(prefixes)}
