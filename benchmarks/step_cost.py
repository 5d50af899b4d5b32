"""What a step boundary costs the training thread, hot and cold, beside the bare loop.

`python benchmarks/step_cost.py [--other PATH] [--counts]`, with another checkout to compare with.
Each figure is taken in a process of its own, the checkouts in turns. *Hot* is one call after
another; *cold* is a call after 32 MB of other work, which is how a training calls it. What one step
enters beyond that of the bare loop is counted by `sys.setprofile`: Python functions, torch's
between ours included, calls into C, and files of ours. These are exact on a busy machine too. The
*floor* is the least that a recorder with the same promises can do: one function that reads the
three clocks, keeps a row, and copies it into mapped memory for the case of a kill. It says what the
goals for `step()` mean on this machine.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import gc
import itertools
import json
import math
import mmap
import os
import statistics
import struct
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
    "floor": "the floor: clocks, a row, mapped memory",
    "step": "profiler.step()",
    "watch": "profiler.watch(), a batch",
    "phases": "three phases and step()",
    "auto": "auto_phases, a step of torch",
    "run": "stepscope run, a step of torch",
    "fetch": "stepscope run, a batch of a DataLoader",
    "callback": "a framework's callback, the same",
}
OF_TORCH = ("auto", "run", "fetch", "callback")
"""The step itself is no cost."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--other", type=Path, help="another checkout, to compare with")
    parser.add_argument("--only", choices=PATHS, nargs="+", default=list(PATHS))
    parser.add_argument(
        "--counts", action="store_true", help="only count, on a machine too busy for times"
    )
    parser.add_argument("--rounds", type=int, default=3, help="processes for each figure")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        print(json.dumps(_measured(asked.child, is_timed=not asked.counts)))
        return
    checkouts = [HERE] if asked.other is None else [HERE, asked.other.resolve()]
    print(f"{'':44} {'hot':>9} {'cold':>9} {'functions':>10} {'C calls':>8} {'files':>6}")
    for path in asked.only:
        title = PATHS[path]
        found: dict[Path, list[dict[str, float]]] = collections.defaultdict(list)
        for _ in range(1 if asked.counts else asked.rounds):
            for checkout in checkouts:
                one = _child(checkout, path, *["--counts"] * asked.counts)
                found[checkout] += [] if one is None else [one]
        for checkout in checkouts:
            where = "" if len(checkouts) == 1 else f" ({checkout.name})"
            if not found[checkout]:
                print(f"{title + where:44} this version has other modules: not measured")
                continue
            best = {
                name: statistics.median(one[name] for one in found[checkout])
                for name in found[checkout][0]
            }
            print(
                f"{title + where:44} {best['hot']:6.1f} µs {best['cold']:6.1f} µs"
                f" {best['functions']:10.0f} {best['c_calls']:8.0f} {best['files']:6.0f}"
            )
        print(f"{'  the bare loop':44} {best['bare_hot']:6.1f} µs {best['bare_cold']:6.1f} µs")


def _child(checkout: Path, path: str, *flags: str) -> dict[str, float] | None:
    """What one process measures; None where another version lacks what this kind of step needs."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, str(Path(__file__).resolve()), "--child", path, *flags],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            check=checkout == HERE,
        )
    if done.returncode:
        return None
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _measured(path: str, *, is_timed: bool) -> dict[str, float]:
    """Microseconds of one step of this kind, and what it enters."""
    import stepscope

    options: dict[str, Any] = {
        "output_dir": "profiles",
        "announce": False,
        "window_recorder": "none",
    }
    if path == "auto":
        options["auto_phases"] = True
    times = dict.fromkeys(("bare_hot", "bare_cold", "hot", "cold"), math.nan)
    bare, prepare = _steps_of(path, None)
    if is_timed:
        times |= {"bare_hot": _hot(bare), "bare_cold": _cold(bare)}
    for _ in range(50):
        bare()
    of_bare = _counts(bare, prepare)
    with contextlib.ExitStack() as recording:
        if path == "floor":
            step = _least(recording)
        elif path == "run":
            step = _under_run(options)
        elif path == "fetch":
            _under_run(options)
            step, prepare = _fetching()
        elif path == "callback":
            step = _with_callback(options, recording)
        else:
            profiler = recording.enter_context(stepscope.Profiler(**options))
            step, prepare = _steps_of(path, profiler)
        for _ in range(50):
            prepare()
            step()
        if is_timed:
            times |= {"hot": _hot(step, prepare), "cold": _cold(step, prepare)}
        counts = _counts(step, prepare)
    for name, count in of_bare.items():
        counts[name] -= count
    if path in OF_TORCH:
        times["hot"] -= times["bare_hot"]
        times["cold"] -= times["bare_cold"]
    return {**times, **counts}


def _steps_of(path: str, profiler: Any) -> tuple[Callable[[], object], Callable[[], object]]:
    """One step, and what comes before it and is not measured."""
    if path in {"step", "floor"}:
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
    if path == "fetch":
        return _fetching()
    return _training(profiler.step if profiler else int), int


def _least(recording: contextlib.ExitStack) -> Callable[[], object]:
    """What every recorder must do at a boundary whose rows outlive a kill, and no more."""
    clock, cpu_clock, read, slot = (
        time.perf_counter_ns,
        time.thread_time_ns,
        getattr(os, "pread", lambda *_: b""),
        struct.Struct("<4q48s"),
    )
    most = 1 << 12
    folder = recording.enter_context(tempfile.TemporaryDirectory())
    file = os.open(Path(folder, "rows"), os.O_RDWR | os.O_CREAT)
    os.truncate(file, slot.size * most)
    memory = recording.enter_context(mmap.mmap(file, 0))
    queued = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
    rows: collections.deque[tuple[Any, ...]] = collections.deque(maxlen=most)
    steps = itertools.count()

    def step() -> None:
        number = next(steps)
        row = (number, clock(), cpu_clock(), 0, read(queued, 48, 0))
        rows.append(row)
        slot.pack_into(memory, number % most * slot.size, *row)

    return step


def _under_run(options: dict[str, Any]) -> Callable[[], object]:
    """A step as `stepscope run` records it: it ends with the optimizer's step."""
    from stepscope.adapters.script.hooks import install

    install({"options": options, "step_on": "optimizer", "notes": tempfile.mkdtemp()})
    return _training(int)


def _with_callback(
    options: dict[str, Any], recording: contextlib.ExitStack
) -> Callable[[], object]:
    """A step as a framework announces it."""
    from stepscope.adapters.callbacks.training import CallbackBase
    from stepscope.capture.ranks import RankIdentity

    recorder = CallbackBase(**options)._recorder
    recorder.begin(RankIdentity())
    recording.callback(recorder.finish)
    train = _training(recorder.step_ended)

    def step() -> None:
        recorder.forward()
        train()

    return step


def _fetching() -> tuple[Callable[[], object], Callable[[], object]]:
    """Fetching a batch, and the rest of the step."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.ones(4 * (2 * COLD + 2 * HOT), 8))
    batches = itertools.chain.from_iterable(
        DataLoader(data, batch_size=4) for _ in itertools.count()
    )
    return lambda: next(batches), _training(int)


def _training(step_ended: Callable[[], object]) -> Callable[[], object]:
    import torch

    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batch = torch.ones(4, 8)

    def train() -> None:
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        step_ended()

    return train


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
    """What one step enters: Python functions, calls into C, and files of Stepscope."""
    import stepscope

    root = str(Path(stepscope.__file__).parent)
    functions, files, c_calls = 0, set(), 0

    def count(frame: Any, event: str, _: object) -> None:
        nonlocal functions, c_calls
        if event == "call":
            functions += 1
            if frame.f_code.co_filename.startswith(root):
                files.add(frame.f_code.co_filename)
        elif event == "c_call":
            c_calls += 1

    prepare()
    gc.disable()  # a collection that falls into this one step is no part of it
    sys.setprofile(count)
    step()
    sys.setprofile(None)
    gc.enable()
    return {"functions": functions, "c_calls": c_calls, "files": len(files)}


if __name__ == "__main__":
    main()
