"""Two processes in turns: never both at once, none forgotten, and no workers beside the other."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from itertools import pairwise

import pytest

from stepscope.trial.alternation import alternating
from stepscope.trial.inside.companion import SLICE_S

SCRIPT = """
import json, multiprocessing, os, sys, time
from stepscope.trial.inside.companion import TimeSlices

def work(path):
    with open(path, "w") as file:
        while True:
            file.write(f"{time.monotonic()}\\n")
            file.flush()
            time.sleep(0.005)

address, name, steps, has_worker = sys.argv[1:]
if int(has_worker):
    context = multiprocessing.get_context("fork")
    context.Process(target=work, args=(name + ".worker",), daemon=True).start()
turns, times = TimeSlices(address), []
if name.endswith("leaves"):  # a process that outlives this one
    if not os.fork():
        time.sleep(100)
for _ in range(int(steps)):
    turns.wait()
    begun = time.monotonic()
    time.sleep(0.02)
    times.append((begun, time.monotonic()))
with open(name, "w") as file:
    json.dump(times, file)
"""


@pytest.fixture
def start(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    started = []

    def begin(address, name, steps, has_worker=False):
        words = (address, str(tmp_path / name), str(steps), str(int(has_worker)))
        process = subprocess.Popen([sys.executable, str(script), *words], start_new_session=True)
        started.append(process)
        return process

    yield begin
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def steps_of(path):
    return json.loads(path.read_text())


def wait_until(happened):
    ends = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < ends
        time.sleep(0.01)


def test_one_trains_at_a_time_and_both_in_each_stretch(start, tmp_path):
    with alternating() as (alternation, address):
        first = start(address, "first", 60)
        wait_until(lambda: alternation.has_begun)
        second = start(address, "second", 60)
        assert first.wait(60) == second.wait(60) == 0
    steps = [(*step, name) for name in ("first", "second") for step in steps_of(tmp_path / name)]
    steps.sort()
    assert len(steps) == 120
    assert all(before[1] <= after[0] for before, after in pairwise(steps))
    names = [name for _, _, name in steps]
    changes = sum(one != other for one, other in pairwise(names))
    a_turn = SLICE_S / 0.02
    # The last turns may be short; a loaded machine makes them shorter, never longer.
    assert changes >= 120 / (a_turn + 1) - 1


def test_the_first_waits_for_the_second_to_come(start, tmp_path):
    with alternating() as (alternation, address):
        start(address, "first", 5)
        wait_until(lambda: alternation.has_begun)
        time.sleep(0.2)
        assert not (tmp_path / "first").exists()


def test_the_end_of_one_leaves_the_other_alone(start, tmp_path):
    with alternating() as (alternation, address):
        first = start(address, "first", 100)
        wait_until(lambda: alternation.has_begun)
        second = start(address, "second", 3)
        assert second.wait(60) == 0
        assert first.wait(60) == 0
    assert len(steps_of(tmp_path / "first")) == 100


def test_what_a_run_leaves_behind_keeps_nobody_waiting(start, tmp_path):
    with alternating() as (alternation, address):
        first = start(address, "leaves", 3)
        wait_until(lambda: alternation.has_begun)
        second = start(address, "second", 60)
        assert first.wait(60) == 0
        assert second.wait(60) == 0
    assert len(steps_of(tmp_path / "second")) == 60


def test_the_end_of_the_alternation_leaves_both_alone(start, tmp_path):
    with alternating() as (alternation, address):
        first = start(address, "first", 5)
        wait_until(lambda: alternation.has_begun)
    assert first.wait(60) == 0
    assert len(steps_of(tmp_path / "first")) == 5
    assert start(address, "late", 2).wait(60) == 0  # nobody gives turns any more


def test_workers_stop_in_the_turn_of_the_other(start, tmp_path):
    with alternating() as (alternation, address):
        first = start(address, "first", 60, has_worker=True)
        wait_until(lambda: alternation.has_begun)
        second = start(address, "second", 60)
        assert first.wait(60) == second.wait(60) == 0
    ours, others = steps_of(tmp_path / "first"), steps_of(tmp_path / "second")
    ticks = [float(line) for line in (tmp_path / "first.worker").read_text().splitlines()]
    overlapping = [(begun, ended) for begun, ended in others if begun < ours[-1][1]]
    disturbed = [one for one in overlapping if any(one[0] < t < one[1] for t in ticks)]
    assert len(overlapping) > 10
    # A signal may come a moment after the turn has begun.
    assert len(disturbed) <= len(overlapping) / 5
    assert any(ours[-1][0] - 0.5 < t for t in ticks)  # and go on afterwards
