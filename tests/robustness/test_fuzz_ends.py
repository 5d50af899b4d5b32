"""Trainings of many kinds that end in many ways, at random moments: as without a profiler.

Each case is one training with one way of recording it. Signals come from outside, whatever the
training or the recording does at that moment. The exit status must be that of the same training
without recording, the losses the same to the last bit, and nothing may be left: no process, no
temporary file, nothing that cannot be read. `STEPSCOPE_FUZZ_SECONDS` says for how long (600),
`STEPSCOPE_FUZZ_SEED` repeats a run.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.forked import run_verb
from tests.support.guides import environment
from tests.support.training import bare_losses
from tests.support.warm_python import warm_python

pytest.importorskip("torch")

SECONDS = float(os.environ.get("STEPSCOPE_FUZZ_SECONDS", "600"))
STEPS = 24
MOST_S = 400
"""Longer than any training takes on a busy machine: what is not over by then hangs."""

SCRIPT = """
import contextlib, json, os, signal, sys, threading, time
import torch
from tests.support.training import SmallTraining, batches

case = json.loads(sys.argv[1])
kind, end = case["kind"], case["end"]
training = SmallTraining()


def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())


class Batches(torch.utils.data.Dataset):
    def __init__(self):
        self.made = list(batches(case["steps"]))

    def __len__(self):
        return len(self.made)

    def __getitem__(self, index):
        return self.made[index]


def beside():
    other = SmallTraining(3)
    for batch in batches(200, 5):
        other.step(batch)
        time.sleep(0.001)
    sums.append(sum(other.losses).hex())


def loop(profiler):
    data = batches(case["steps"])
    if kind == "workers":
        data = torch.utils.data.DataLoader(Batches(), batch_size=None, num_workers=2)
    if profiler is not None and case["watches"]:
        data = profiler.watch(data)
    step = training.step
    if kind == "compiled":
        own = torch.compile(lambda x: (x * 2).relu().sum(), backend="eager")
        step = lambda batch: (own(batch[0]), training.step(batch))
    for number, batch in enumerate(data):
        if kind == "raising":
            with contextlib.suppress(RuntimeError):
                batch[0].matmul(batch[0])
        if kind == "forking" and number == case["at"]:
            child = os.fork()
            if child == 0:
                loop_of_child(profiler)
                os._exit(0)
            say("CHILD", os.waitpid(child, 0)[1])
        if kind == "own profiler" and number == case["at"]:
            theirs = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
            with contextlib.suppress(RuntimeError), theirs:
                torch.ones(3).sum()
        step(batch)
        say("LOSS", training.losses[-1].hex())
        if number == case["at"]:
            if end == "raise":
                raise ValueError("an error of the script")
            if end == "exit":
                sys.exit(5)
            if end == "exit at once":
                os._exit(6)
            if end == "abort":
                os.abort()
        time.sleep(0.005)
        if profiler is not None and not case["watches"]:
            profiler.step()


def loop_of_child(profiler):
    for batch in batches(5):
        training.step(batch)
        if profiler is not None:
            profiler.step()


if __name__ == "__main__":
    say("PID", os.getpid())
    if case["handles"]:
        signal.signal(signal.SIGTERM, lambda number, frame: say("HANDLED") or sys.exit(9))
    sums = []
    thread = threading.Thread(target=beside)
    if kind == "threads":
        thread.start()
    if case["options"] is None:
        loop(None)
    else:
        import stepscope
        with stepscope.Profiler(**case["options"]) as profiler:
            loop(profiler)
    if kind == "threads":
        thread.join()
        say("OTHER", *sums)
    say("OVER")
"""

KINDS = ("plain", "workers", "threads", "compiled", "raising", "forking", "own profiler")
ENDS = ("none", "raise", "exit", "exit at once", "abort", "SIGTERM", "SIGINT", "SIGKILL", "SIGHUP")
WITHOUT_GOODBYE = ("exit at once", "abort", "SIGKILL", "SIGHUP")
"""Ends at which a process can tidy nothing up."""
OPTIONS = (
    {"wait": 1, "warmup": 1, "active": 2, "repeat": 0},
    {"wait": 0, "warmup": 0, "active": 5, "repeat": 0},
    {"wait": 0, "warmup": 1, "active": 200},
    {"wait": 2, "warmup": 0, "active": 1, "repeat": 0, "keep_windows": 1},
)
MORE = (
    {},
    {"with_stack": True, "record_shapes": True, "profile_memory": True},
    {"window_recorder": "tracemalloc"},
    {"monitor": True, "monitor_interval_s": 0.05},
    {"memory_census": True, "memory_log": True, "memory_log_steps": 1},
    {"slow_step_factor": 1.2, "warmup": 1, "max_pause_s": 0.05},
)


def make(chance: random.Random, folder: Path) -> dict[str, Any]:
    """One case."""
    options = {**chance.choice(OPTIONS), **chance.choice(MORE), "activities": "cpu"}
    end = chance.choice(ENDS)
    return {
        "kind": chance.choice(KINDS),
        "end": end,
        "at": chance.randrange(STEPS),
        "delay_s": chance.choice((0.0, 0.002, 0.01, 0.05, 0.2)) * chance.random(),
        "steps": STEPS,
        "watches": chance.random() < 0.5,
        "handles": end == "SIGTERM" and chance.random() < 0.3,
        "options": {**options, "output_dir": str(folder / "out"), "grace_s": 200.0},
    }


def run_case(folder: Path, case: dict[str, Any]) -> tuple[int | list[str], list[str]]:
    """Run a case and send its signal at its moment; the exit status, and lines.

    In place of the status of one that hangs stand the processes that do.

    The lines go to a file: processes of the recording that outlive the training do not hold it up.
    """
    (folder / "tmp").mkdir(parents=True)
    script, said = folder / "train.py", folder / "lines"
    script.write_text(SCRIPT)
    number = getattr(signal, case["end"], None)
    with said.open("wb") as lines, (folder / "errors").open("wb") as errors:
        process = subprocess.Popen(
            [warm_python(), str(script), json.dumps(case)],
            cwd=folder,
            env=environment(TMPDIR=str(folder / "tmp")),
            stdout=lines,
            stderr=errors,
            start_new_session=True,
        )
    end = time.monotonic() + MOST_S
    while process.poll() is None and time.monotonic() < end:
        text = said.read_text()
        if number is not None and text.count("LOSS") > case["at"]:
            time.sleep(case["delay_s"])
            pid = int(text.split(maxsplit=2)[1])
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            number = None
        time.sleep(0.002)
    status = process.poll()
    if status is None:
        hanging = [f"{one.status()}: {one.cmdline()}" for one in processes_of(folder)]
        process.kill()
        process.wait()
        return hanging, said.read_text().splitlines()
    return status, said.read_text().splitlines()


def processes_of(folder: Path) -> list[psutil.Process]:
    """Processes that work in the folder of a case."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            is_over = process.status() == psutil.STATUS_ZOMBIE
            if process.cwd() == str(folder) and not is_over:
                found.append(process)
    return found


def statuses(case: dict[str, Any], *, is_over: bool) -> set[int]:
    """The exit statuses that the training has without a recording."""
    own = {"none": 0, "raise": 1, "exit": 5, "exit at once": 6, "abort": -signal.SIGABRT}
    if case["end"] in own:
        return {own[case["end"]]}
    by_signal = 9 if case["handles"] else -getattr(signal, case["end"])
    # A signal may come when everything is said, and when the interpreter has put its own back.
    return {by_signal, 0, -getattr(signal, case["end"])} if is_over else {by_signal}


def wrongs(folder: Path, case: dict[str, Any], expected: list[str]) -> Iterator[str]:
    """Whatever is not as it would be without a recording."""
    status, lines = run_case(folder, case)
    is_over = "OVER" in lines
    if isinstance(status, list):
        yield f"hangs: {status}"
    elif status not in statuses(case, is_over=is_over):
        yield f"exit status {status}"
    losses = [line.removeprefix("LOSS ") for line in lines if line.startswith("LOSS")]
    if losses != expected[: len(losses)] or (is_over and len(losses) < len(expected)):
        yield f"losses {losses}"
    for line in lines:
        if line.startswith("CHILD") and line != "CHILD 0":
            yield line
    end = time.monotonic() + MOST_S
    while (left := processes_of(folder)) and time.monotonic() < end:
        time.sleep(0.05)
    for process in left:
        with contextlib.suppress(psutil.Error):
            yield f"still runs: {process.cmdline()}"
            process.kill()
    files = [path for path in (folder / "out").rglob("*") if path.name.endswith(".tmp")]
    # Compilers keep what they made, and workers of data tidy up what they had in their turn.
    theirs = ("torchinductor", "pymp-")
    files += [path for path in (folder / "tmp").iterdir() if not path.name.startswith(theirs)]
    if files and case["end"] not in WITHOUT_GOODBYE:
        yield f"left {[path.name for path in files]}"
    if (folder / "out").exists() and list((folder / "out").iterdir()):
        ending = run_verb(("report", str(folder / "out")), cpu_seconds=90, seconds=400)
        code, said = ending.answer or (None, ending.errors)
        if code not in (0, 2, 3) or "unexpected" in said:
            yield f"report: exit code {code}: {said[-1500:]}"


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="signals and /proc of Linux")
@pytest.mark.timeout(SECONDS + 1800)
def test_ends_at_random_moments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_DEBUG", "1")
    expected = [loss.hex() for loss in bare_losses(STEPS)]
    seed = int(os.environ.get("STEPSCOPE_FUZZ_SEED", time.time_ns() % 2**32))
    chance = random.Random(seed)
    end = time.monotonic() + SECONDS
    found: list[str] = []
    cases = 0
    while time.monotonic() < end:
        state = chance.getrandbits(32)
        folder = tmp_path / str(cases)
        case = make(random.Random(state), folder)
        for what in wrongs(folder, case, expected):
            errors = (folder / "errors").read_text()[-1500:]
            found.append(f"seed {seed} case {cases} state {state} {case}: {what}\n{errors}")
        shutil.rmtree(folder, ignore_errors=True)
        cases += 1
    print(f"{cases} cases, seed {seed}")
    assert not found, "\n\n".join([f"{len(found)} in {cases} cases", *found])
    assert cases > 0
