"""What a step boundary costs the training thread, hot and cold, beside the bare loop.

`python benchmarks/step_cost.py [--other PATH]`, with the path of another checkout to compare with.
Each figure is taken in a process of its own, the checkouts in turns. *Hot* is one call after
another; *cold* is a call after 32 MB of other work, which is how a training calls it. The functions
that one step enters, and the files that they stand in, are counted by `sys.setprofile`: these are
exact on a busy machine too.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
HOT, COLD = 4000, 400
WORK_BYTES = 32 << 20
PATHS = {
    "step": "profiler.step()",
    "watch": "profiler.watch(), a batch",
    "phases": "three phases and step()",
    "auto": "auto_phases, a step of torch",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--other", type=Path, help="another checkout, to compare with")
    parser.add_argument("--rounds", type=int, default=3, help="processes for each figure")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        print(json.dumps(_measured(asked.child)))
        return
    checkouts = [HERE] if asked.other is None else [HERE, asked.other.resolve()]
    print(f"{'':44} {'hot':>9} {'cold':>9} {'functions':>10} {'C calls':>8} {'files':>6}")
    for path, title in PATHS.items():
        found: dict[Path, list[dict[str, float]]] = collections.defaultdict(list)
        for _ in range(asked.rounds):
            for checkout in checkouts:
                found[checkout].append(_child(checkout, path))
        for checkout in checkouts:
            where = "" if len(checkouts) == 1 else f" ({checkout.name})"
            best = {
                name: statistics.median(one[name] for one in found[checkout])
                for name in found[checkout][0]
            }
            print(
                f"{title + where:44} {best['hot']:6.1f} µs {best['cold']:6.1f} µs"
                f" {best['functions']:10.0f} {best['c_calls']:8.0f} {best['files']:6.0f}"
            )
        print(f"{'  the bare loop':44} {best['bare_hot']:6.1f} µs {best['bare_cold']:6.1f} µs")


def _child(checkout: Path, path: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, str(Path(__file__).resolve()), "--child", path],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            check=True,
        )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _measured(path: str) -> dict[str, float]:
    """Microseconds of one step of this kind, and what it enters."""
    import stepscope

    options: dict[str, Any] = {
        "output_dir": "profiles",
        "announce": False,
        "window_recorder": "none",
    }
    if path == "auto":
        options["auto_phases"] = True
    bare, _ = _steps_of(path, None)
    found = {"bare_hot": _hot(bare), "bare_cold": _cold(bare)}
    with stepscope.Profiler(**options) as profiler:
        step, prepare = _steps_of(path, profiler)
        for _ in range(50):
            prepare()
            step()
        found |= {
            "hot": _hot(step, prepare),
            "cold": _cold(step, prepare),
            **_counts(step, prepare),
        }
    if path == "auto":  # the step itself is no cost
        found["hot"] -= found["bare_hot"]
        found["cold"] -= found["bare_cold"]
    return found


def _steps_of(path: str, profiler: Any) -> tuple[Callable[[], object], Callable[[], object]]:
    """One step, and what comes before it and is not measured."""
    if path == "step":
        return (profiler.step if profiler else int), int
    if path == "watch":
        endless: Iterator[int] = iter(int, 1)
        batches = iter(profiler.watch(endless)) if profiler else endless
        return lambda: next(batches), int
    if path == "phases":

        def three() -> None:
            for name in ("forward", "backward", "optimizer"):
                with profiler.phase(name):
                    pass
            profiler.step()

        return (three if profiler else int), int
    return _training(profiler)


def _training(profiler: Any) -> tuple[Callable[[], object], Callable[[], object]]:
    import torch

    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batch = torch.ones(4, 8)

    def train() -> None:
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if profiler is not None:
            profiler.step()

    return train, int


def _hot(step: Callable[[], object], prepare: Callable[[], object] = int) -> float:
    return _median(step, prepare, HOT)


def _cold(step: Callable[[], object], prepare: Callable[[], object] = int) -> float:
    import numpy as np

    work = np.zeros(WORK_BYTES // 8)

    def other() -> None:
        prepare()
        np.add(work, 1.0, out=work)

    return _median(step, other, COLD)


def _median(step: Callable[[], object], prepare: Callable[[], object], times: int) -> float:
    took = []
    for _ in range(times):
        prepare()
        started = time.perf_counter_ns()
        step()
        took.append(time.perf_counter_ns() - started)
    return statistics.median(took) / 1e3


def _counts(step: Callable[[], object], prepare: Callable[[], object]) -> dict[str, float]:
    """What one step enters of Stepscope: functions, the calls into C that they make, files."""
    import stepscope

    root = str(Path(stepscope.__file__).parent)
    functions, files, c_calls = 0, set(), 0

    def count(frame: Any, event: str, _: object) -> None:
        nonlocal functions, c_calls
        if not frame.f_code.co_filename.startswith(root):
            return
        if event == "call":
            functions += 1
            files.add(frame.f_code.co_filename)
        elif event == "c_call":
            c_calls += 1

    prepare()
    sys.setprofile(count)
    step()
    sys.setprofile(None)
    return {"functions": functions, "c_calls": c_calls, "files": len(files)}


if __name__ == "__main__":
    main()
