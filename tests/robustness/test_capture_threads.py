"""Loops that spread over threads and processes: torch records one thread, and must not break."""

from __future__ import annotations

import copy
import json
import os
import pickle

import pytest
from tests.support.guides import run_script as run_alone
from tests.support.runs import manifest_of, rank_directory
from tests.support.scripts import run_script
from tests.support.training import SmallTraining, batches

import stepscope
from stepscope import open_run
from stepscope.capture.ranks import ProcessClaim


def test_steps_that_several_threads_end_at_once_end_no_process(tmp_path):
    body = """
        def loop():
            for batch in batches(40):
                SmallTraining().step(batch)
                profiler.step()

        with stepscope.Profiler(**options) as profiler:
            threads = [threading.Thread(target=loop) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    """
    result = run_script(tmp_path, body)
    assert result.returncode == 0, result.stderr
    manifest = manifest_of(tmp_path / "out")
    assert manifest.steps == 160
    assert manifest.problems == ()
    assert len(rank_directory(tmp_path / "out").joinpath("steps.jsonl").read_bytes().split()) == 160


@pytest.mark.slow
def test_a_step_in_its_own_thread_each_time_loses_windows_and_nothing_else(tmp_path):
    body = """
        def one(batch):
            training.step(batch)
            profiler.step()

        with stepscope.Profiler(**options) as profiler:
            for batch in batches(12):
                thread = threading.Thread(target=one, args=(batch,))
                thread.start()
                thread.join()
    """
    result = run_script(tmp_path, body)
    assert result.returncode == 0, result.stderr
    manifest = manifest_of(tmp_path / "out")
    assert manifest.steps == 12
    assert {window.state for window in manifest.windows} == {"failed"}
    assert "opened in another thread" in manifest.windows[0].reason


@pytest.mark.slow
def test_a_window_that_the_end_comes_to_in_another_thread_is_ended_in_its_own(tmp_path):
    body = """
        import torch

        profiler = stepscope.Profiler(**options)
        profiler.start()
        for batch in batches(3):
            training.step(batch)
            profiler.step()
        thread = threading.Thread(target=profiler.stop)
        thread.start()
        thread.join()
        assert torch.autograd._profiler_enabled()
        profiler.step()
        assert not torch.autograd._profiler_enabled()
    """
    result = run_script(tmp_path, body)
    assert result.returncode == 0, result.stderr
    (window,) = manifest_of(tmp_path / "out").windows
    assert window.state == "failed"
    assert "in the same one" in window.reason


def test_a_loop_that_moves_to_another_thread_keeps_windows_and_phases(tmp_path):
    body = """
        def rest():
            for batch in batches(8):
                with profiler.phase("work"):
                    training.step(batch)
                profiler.step()

        with stepscope.Profiler(**options) as profiler:
            thread = threading.Thread(target=rest)
            thread.start()
            thread.join()
    """
    result = run_script(tmp_path, body)
    assert result.returncode == 0, result.stderr
    assert [window.state for window in manifest_of(tmp_path / "out").windows] == ["complete"] * 2
    lines = rank_directory(tmp_path / "out").joinpath("steps.jsonl").read_text().splitlines()
    assert all('"work"' in line for line in lines[1:])


def test_a_fork_that_goes_on_with_the_loop_leaves_the_parents_run_alone(tmp_path):
    body = """
        with stepscope.Profiler(**options) as profiler:
            for number, batch in enumerate(batches(8)):
                training.step(batch)
                if number == 0 and os.fork() == 0:
                    for batch in profiler.watch(batches(9)):
                        with profiler.phase("work"):
                            training.step(batch)
                        profiler.step()
                    with stepscope.Profiler(**{**options, "output_dir": "child", "wait": 100}):
                        pass
                    profiler.stop()
                    os._exit(0)
                profiler.step()
        os.wait()
    """
    result = run_script(tmp_path, body)
    assert result.returncode == 0, result.stderr
    manifest = manifest_of(tmp_path / "out")
    assert manifest.steps == 8
    assert [window.state for window in manifest.windows] == ["complete", "complete"]
    assert len(rank_directory(tmp_path / "out").joinpath("steps.jsonl").read_bytes().split()) == 8


def test_a_claim_is_not_inherited():
    class Owner:
        def forget(self):
            os.write(told, b"forgotten, ")

    reads, told = os.pipe()
    owner = Owner()
    assert ProcessClaim.take(owner)
    try:
        if os.fork() == 0:
            os.write(told, b"free" if ProcessClaim.holder() is None else b"held")
            os._exit(0)
        os.wait()
        assert os.read(reads, 100) == b"forgotten, free"
        assert ProcessClaim.holder() is owner
    finally:
        ProcessClaim.give_back(owner)
        os.close(reads)
        os.close(told)


def unpickled(profiler):
    return pickle.loads(pickle.dumps(profiler))


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, unpickled])
@pytest.mark.parametrize("is_running", [False, True])
def test_a_profiler_can_be_copied_with_what_holds_it(tmp_path, duplicate, is_running):
    profiler = stepscope.Profiler(output_dir=tmp_path / "out", wait=100, words={"model_name": "m"})
    if is_running:
        profiler.start()
    other = duplicate({"callback": profiler})["callback"]
    training = SmallTraining()
    for batch in other.watch(batches(2)):
        with other.phase("work"):
            training.step(batch)
    profiler.stop()
    assert len(training.losses) == 2
    if duplicate is unpickled:
        assert other is not profiler
        assert other.config == profiler.config
        assert other.run_path is None
    elif duplicate is copy.deepcopy:
        assert other is profiler


# -- torch's own faults, and ours ------------------------------------------------------------------

AT_THE_LIMIT = """
import inspect, json, sys
import torch
import stepscope


def at_depth(depth):
    if depth:
        return at_depth(depth - 1)
    profiler.step()


reached = []
profiler = stepscope.Profiler(output_dir="out", wait=2, warmup=1, active=2, repeat=2)
with profiler:
    spare = sys.getrecursionlimit() - len(inspect.stack())
    for number in range(40):
        torch.ones(4).sum()
        room = 2 * number + 4 if number < 30 else 0
        try:
            at_depth(spare - room if room else 0)
        except RecursionError:
            reached.append(room)
print(json.dumps(reached))
"""


def test_a_step_at_the_end_of_the_recursion_limit_never_raises(tmp_path):
    """Torch's own profiler raises AssertionError out of `step()` there."""
    done = run_alone(tmp_path, AT_THE_LIMIT, [])
    assert done.returncode == 0, done.stderr
    assert [room for room in json.loads(done.stdout.splitlines()[-1]) if room > 6] == []
    manifest = manifest_of(tmp_path / "out")
    assert manifest.state == "finished"
    assert open_run(tmp_path / "out").ranks[0].steps[-1].kind == "train"
    # What was lost is noted.
    assert any("recursion" in problem.message for problem in manifest.problems)


DAEMON = """
import threading, time
import torch
import stepscope

ready = threading.Event()


def loop():
    with stepscope.Profiler(output_dir="out", wait=1, warmup=1, active=2, repeat=1) as profiler:
        for number in range(10**9):
            torch.ones(4).sum()
            profiler.step()
            if number == 50:
                ready.set()


threading.Thread(target=loop, daemon=True).start()
ready.wait()
"""


def test_a_daemon_thread_that_steps_at_exit_leaves_a_complete_run(tmp_path):
    """The process may be aborted: torch does that to any thread inside it at exit, without us."""
    run_alone(tmp_path, DAEMON, [])
    manifest = manifest_of(tmp_path / "out")
    assert manifest.state == "finished"
    assert [window.state for window in manifest.windows] == ["complete"]
