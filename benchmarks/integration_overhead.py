"""What a steady step costs through each integration, outside windows: with and without it.

Each integration drives the same small training in this process. Each block of steps with it stands
between two without it, so that a busy machine slows both alike. The ratio is the median over the
blocks of the ratio of their median steps; the first steps of a block are left out. A second ratio
counts only the CPU time of the training thread, which other processes hardly affect.

If TraceML is installed (`pip install traceml-ai`), its `trace_step` is measured too, around the
same training. Its hooks stay in a process that has them, so each of its blocks runs in a new
process, after one without it.

    python benchmarks/integration_overhead.py [--blocks 10] [--steps 100] [--milliseconds 5]
        [--only run]
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import itertools
import json
import logging
import os
import socket
import statistics
import subprocess
import sys
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
    With `batch_size`, that decides instead of the time.
    """

    def __init__(self, milliseconds: float, batch_size: int = 0) -> None:
        layers = [part for _ in range(4) for part in (torch.nn.Linear(256, 256), torch.nn.ReLU())]
        self.model = torch.nn.Sequential(*layers, torch.nn.Linear(256, 8))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.training = True
        self.global_steps = 0
        size = batch_size or 16
        while self._milliseconds(size) < milliseconds and not batch_size:
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


@contextlib.contextmanager
def traceml(training: Training, folder: str) -> Iterator[Callable[[], None]]:
    """TraceML with all that it patches by default; its aggregator is another process, as usual."""
    import traceml_ai

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    serve = "from traceml_ai.launcher.cli import main; main()"
    named = ["--logs-dir", folder, "--run-name", port, "--aggregator-port", port]
    aggregator = subprocess.Popen(
        [sys.executable, "-c", serve, "serve", *named],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        traceml_ai.init(
            logs_dir=folder,
            session_id=port,
            aggregator_port=int(port),
            connect_timeout_sec=60,
            on_missing_aggregator="raise",
        )

        def step() -> None:
            with traceml_ai.trace_step(training.model):
                training.whole_step()

        yield step
        recorded = traceml_ai.final_summary(timeout_sec=60)
        if not recorded["analysis_window"]["end_step"]:
            raise RuntimeError("TraceML has recorded no step")
    finally:
        aggregator.kill()  # it would wait minutes for this process to end first
        aggregator.wait()


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
PEERS: dict[str, Integration] = {"TraceML's `trace_step`": traceml}
"""Other tools, which stay in a process that they were in."""

Times = tuple[float, float]
"""Wall time and CPU time of a step, in milliseconds."""


def block(steps: int, step: Callable[[], object]) -> Times:
    """The median step."""
    times, needed = [], []
    for _ in range(steps):
        started, started_cpu = time.perf_counter(), time.thread_time()
        step()
        needed.append((time.thread_time() - started_cpu) * 1000)
        times.append((time.perf_counter() - started) * 1000)
    return statistics.median(times[_LEFT_OUT:]), statistics.median(needed[_LEFT_OUT:])


def pair(
    training: Training, integration: Integration, folder: str, steps: int, *, stays: bool = False
) -> tuple[Times, Times]:
    """A block with the integration, and the mean of those without it just before and after.

    Where its hooks stay in the process, none comes after.
    """
    before = block(steps, training.whole_step)
    said = io.StringIO()
    with (
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(said),
        integration(training, folder) as step,
    ):
        ours = block(steps, step)
    after = before if stays else block(steps, training.whole_step)
    return ours, ((before[0] + after[0]) / 2, (before[1] + after[1]) / 2)


def pair_of_peer(name: str, batch_size: int, steps: int) -> tuple[Times, Times]:
    """The same, in a process of its own."""
    command = [sys.executable, str(Path(__file__).resolve()), "--peer", name]
    done = subprocess.run(
        [*command, "--batch-size", str(batch_size), "--steps", str(steps)],
        stdout=subprocess.PIPE,
        check=True,
    )
    with_it, bare = json.loads(done.stdout.splitlines()[-1])
    return with_it, bare


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--milliseconds", type=float, default=5.0)
    parser.add_argument("--only", default="", help="integrations whose name contains this")
    parser.add_argument("--peer", choices=PEERS, help=argparse.SUPPRESS)
    parser.add_argument("--batch-size", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.steps <= _LEFT_OUT:
        parser.error(f"--steps must be above {_LEFT_OUT}: so many are left out of each block")
    logging.getLogger("stepscope").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    training = Training(args.milliseconds, args.batch_size)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.chdir(folder)
        if args.peer:
            print(json.dumps(pair(training, PEERS[args.peer], folder, args.steps, stays=True)))
            return
        print("| Integration | CPU time of a step | CPU time, ratio | Added | Wall time, ratio |")
        print("|---|---|---|---|---|")
        for name, integration in (INTEGRATIONS | PEERS).items():
            if args.only not in name:
                continue
            if name in PEERS and importlib.util.find_spec("traceml_ai") is None:
                print(f"| {name} | not measured: traceml-ai is not installed |")
                continue
            pairs = []
            try:
                for _ in range(args.blocks):
                    if name in PEERS:
                        pairs.append(pair_of_peer(name, len(training.batch), args.steps))
                    else:
                        pairs.append(pair(training, integration, folder, args.steps))
            except (ImportError, subprocess.CalledProcessError) as error:
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
