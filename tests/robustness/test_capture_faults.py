"""The fault table: each fault is real, the training ends as without a profiler, and what was
recorded before the fault can be read."""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import textwrap
import time
from pathlib import Path

import pytest
from tests.support.runs import manifest_of, steps_in_trace
from tests.support.training import SmallTraining, bare_losses, batches
from tests.support.warm_python import VARIABLES, warm_python

import stepscope
from stepscope import open_run

ROOT = Path(__file__).resolve().parents[2]
STEPS = 12
# Windows of steps 2-3, 6-7 and 10-11.
OPTIONS = {"wait": 1, "warmup": 1, "active": 2, "repeat": 0, "activities": "cpu"}
PATIENT = {"grace_s": 200.0}
"""A busy machine may take longer for a window's files than a scheduler waits after SIGTERM."""

SCRIPT = """
    import json, os, resource, shutil, signal, sys, time
    import stepscope
    from stepscope import open_run
    from tests.support.training import SmallTraining, batches

    output = sys.argv[1]
    training = SmallTraining()

    def wait_for_window(index):
        path = os.path.join(open_run(output).path, "rank00000", f"window-{index:04d}")
        deadline = time.monotonic() + 200
        while not os.path.exists(os.path.join(path, "window.json")):
            assert time.monotonic() < deadline, path
            time.sleep(0.01)

    def wait_for_the_end_of_a_process():
        # It stays to be collected by the profiler, unless that has come first.
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            print("nothing is at work any more", file=sys.stderr)

    def fault(step):
        @fault@

    @before@
    with stepscope.Profiler(output_dir=output, **@options@) as profiler:
        for number, batch in enumerate(batches(@steps@)):
            fault(number)
            training.step(batch)
            profiler.step()
    print(json.dumps(training.losses))
"""


def start(tmp_path, output, fault, before="", **options):
    script = tmp_path / "train.py"
    body = textwrap.dedent(SCRIPT)
    for word, text in (
        ("fault", textwrap.indent(textwrap.dedent(fault).strip(), "    ").strip()),
        ("before", textwrap.dedent(before).strip()),
        ("options", repr({**OPTIONS, **options})),
        ("steps", str(STEPS)),
    ):
        body = body.replace(f"@{word}@", text)
    script.write_text(body)
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{ROOT}/src:{ROOT}",
        **VARIABLES,
    }
    return subprocess.Popen(
        [warm_python(), str(script), str(output)],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(tmp_path, output, fault, before="", **options):
    process = start(tmp_path, output, fault, before, **options)
    out, err = process.communicate(timeout=280)
    return process.returncode, out, err


def assert_trained_to_the_end(returncode, out, err):
    assert returncode == 0, err
    assert json.loads(out.splitlines()[-1]) == bare_losses(STEPS)


def readable_windows(output):
    """Steps in each trace that the run offers, keyed by window."""
    return {
        window.index: steps_in_trace(window.trace_path)
        for window in open_run(output).windows
        if window.trace_path is not None
    }


# -- ends of the process --------------------------------------------------------------------------


def test_kill_9_inside_a_window_loses_that_window_only(tmp_path):
    fault = """
        if step == 7:
            wait_for_window(0)
            os.kill(os.getpid(), signal.SIGKILL)
    """
    returncode, _, err = run(tmp_path, tmp_path / "out", fault)
    assert returncode == -signal.SIGKILL, err
    assert readable_windows(tmp_path / "out") == {0: [2, 3]}
    found = open_run(tmp_path / "out")
    assert found.problems == ()
    assert found.ranks[0].manifest.state == "running"
    assert [step.step for step in found.ranks[0].steps] == list(range(7))


def test_kill_9_right_after_a_window_does_not_lose_it(tmp_path):
    # The finishing process outlives the training.
    fault = """
        if step == 4:
            os.kill(os.getpid(), signal.SIGKILL)
    """
    returncode, _, err = run(tmp_path, tmp_path / "out", fault)
    assert returncode == -signal.SIGKILL, err
    deadline = time.monotonic() + 200
    while not list((tmp_path / "out").rglob("window.json")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert readable_windows(tmp_path / "out") == {0: [2, 3]}


def test_sigterm_saves_everything_and_ends_by_the_signal(tmp_path):
    fault = """
        if step == 7:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(600)
            print("slept to the end")
    """
    returncode, out, err = run(tmp_path, tmp_path / "out", fault, **PATIENT)
    assert (returncode, out) == (-signal.SIGTERM, ""), err
    manifest = manifest_of(tmp_path / "out")
    assert manifest.state == "stopped"
    assert manifest.ended.startswith("SIGTERM in step 7")
    assert readable_windows(tmp_path / "out")[0] == [2, 3]
    assert manifest.windows[1].state == "partial"
    assert "SIGTERM ended the loop in step 7" in manifest.windows[1].reason
    assert readable_windows(tmp_path / "out")[1] == [6]


def test_sigterm_that_the_training_handles_saves_the_window_and_goes_on(tmp_path):
    before = """
        seen = []
        signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    """
    fault = """
        if step == 7:
            os.kill(os.getpid(), signal.SIGTERM)
            while not seen:
                time.sleep(0.01)
            assert seen == [signal.SIGTERM]
    """
    result = run(tmp_path, tmp_path / "out", fault, before)
    assert_trained_to_the_end(*result)
    manifest = manifest_of(tmp_path / "out")
    assert manifest.state == "finished"
    assert [window.state for window in manifest.windows[:3]] == ["complete", "partial", "complete"]
    assert "SIGTERM came in step 7" in manifest.windows[1].reason
    assert manifest.steps == STEPS


def test_sigterm_that_the_training_ignores_stays_ignored(tmp_path):
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    training = SmallTraining()
    try:
        with stepscope.Profiler(output_dir=tmp_path, **OPTIONS) as profiler:
            for number, batch in enumerate(batches(STEPS)):
                if number == 7:
                    os.kill(os.getpid(), signal.SIGTERM)
                training.step(batch)
                profiler.step()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
    assert training.losses == bare_losses(STEPS)


def test_sigterm_while_the_profiler_itself_works_is_put_off_until_it_is_through(tmp_path):
    before = """
        from stepscope.capture.windows.saving import WindowSaver
        real_save = WindowSaver.save
        def slow_save(self, window, reason, step):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.2)
            real_save(self, window, reason, step)
        WindowSaver.save = slow_save
    """
    returncode, _, err = run(tmp_path, tmp_path / "out", "pass", before, **PATIENT)
    assert returncode == -signal.SIGTERM, err
    manifest = manifest_of(tmp_path / "out")
    assert manifest.windows[0].state == "complete"
    assert manifest.state == "stopped"


def test_signals_are_left_as_they_were(tmp_path):
    def mine(number, frame):
        raise AssertionError

    before = signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGTERM, mine)
        with stepscope.Profiler(output_dir=tmp_path, **OPTIONS):
            assert signal.getsignal(signal.SIGTERM) is not mine
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)


# -- the disk -------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own, of 2 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=False)


FILL = """
        import errno
        if step == {step}:
            wait_for_window(0)
            # Its process may outlive its last file, and must not be taken for that of window 1.
            wait_for_the_end_of_a_process()
            with open(os.path.join(output, "..", "filler"), "wb", buffering=0) as file:
                try:
                    while True:
                        file.write(bytes(4096))
                except OSError as error:
                    assert error.errno == errno.ENOSPC
        if step == 9:
            # Whatever makes window 1's files must have met the full disk before there is room.
            wait_for_the_end_of_a_process()
            filler = os.path.join(output, "..", "filler")
            if {frees} and os.path.exists(filler):
                os.remove(filler)
"""


@pytest.mark.parametrize("frees", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_full_disk_costs_the_windows_of_its_time(tmp_path, small_disk, frees):
    output = small_disk / "out"
    result = run(
        tmp_path,
        output,
        FILL.format(step=5, frees=frees),
        min_free_bytes=0,
    )
    assert_trained_to_the_end(*result)
    windows = readable_windows(output)
    assert windows[0] == [2, 3]
    if not frees:
        assert 1 not in windows
        return
    assert windows[2] == [10, 11]
    manifest = manifest_of(output)
    assert manifest.state == "finished"
    full = manifest.windows[1]
    assert 1 not in windows
    assert full.state == "failed"
    assert "full disk" in full.reason or "space" in full.reason


def test_a_disk_too_full_for_a_window_opens_none(tmp_path):
    training = SmallTraining()
    options = {**OPTIONS, "min_free_bytes": 1 << 60}
    with stepscope.Profiler(output_dir=tmp_path, **options) as profiler:
        for batch in batches(STEPS):
            training.step(batch)
            profiler.step()
    assert training.losses == bare_losses(STEPS)
    first = manifest_of(tmp_path).windows[0]
    assert first.state == "skipped"
    assert re.search(r"its disk has only [\d.]+ [kMG]B free", first.reason)


def test_a_disk_that_turns_read_only_costs_the_windows_of_its_time(tmp_path, small_disk):
    output = small_disk / "out"
    fault = f"""
        if step == 5:
            # A disk on which a file is open for writing cannot turn read-only.
            wait_for_the_end_of_a_process()
            wait_for_window(0)
            assert os.system("mount -o remount,ro {small_disk}") == 0
    """
    result = run(tmp_path, output, fault, step_record=False, min_free_bytes=0)
    assert_trained_to_the_end(*result)
    assert readable_windows(output) == {0: [2, 3]}


def test_a_place_that_is_read_only_from_the_start(tmp_path, small_disk):
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    returncode, out, err = run(tmp_path, small_disk / "out", "pass")
    assert_trained_to_the_end(returncode, out, err)
    assert "Read-only" in err


def test_a_quota_costs_what_exceeds_it(tmp_path):
    # A limit on the size of a file is what a process sees of a quota without one.
    fault = """
        if step == 5:
            wait_for_window(0)
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    """
    output = tmp_path / "out"
    assert_trained_to_the_end(*run(tmp_path, output, fault))
    assert readable_windows(output) == {0: [2, 3]}
    assert manifest_of(output).windows[1].state == "failed"


def remove(folder):
    """Remove a folder although somebody may be writing into it."""
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)


def test_a_directory_that_is_removed_is_made_again_for_what_comes(tmp_path):
    training = SmallTraining()
    with stepscope.Profiler(output_dir=tmp_path / "out", **OPTIONS) as profiler:
        for number, batch in enumerate(batches(STEPS)):
            if number == 5:
                remove(tmp_path / "out")
            training.step(batch)
            profiler.step()
    assert training.losses == bare_losses(STEPS)
    windows = readable_windows(tmp_path / "out")
    assert windows[1] == [6, 7]
    assert windows[2] == [10, 11]
    manifest = manifest_of(tmp_path / "out")
    assert manifest.state == "finished"
    assert any("was removed" in problem.message for problem in manifest.problems)
    assert [step.step for step in open_run(tmp_path / "out").ranks[0].steps][-1] == STEPS - 1


@pytest.mark.parametrize("step", [2, 3])
def test_a_directory_that_is_removed_inside_a_window(tmp_path, step):
    training = SmallTraining()
    with stepscope.Profiler(output_dir=tmp_path / "out", **OPTIONS) as profiler:
        for number, batch in enumerate(batches(STEPS)):
            if number == step:
                shutil.rmtree(tmp_path / "out")
            training.step(batch)
            profiler.step()
    assert training.losses == bare_losses(STEPS)
    assert readable_windows(tmp_path / "out")[0] == [2, 3]


# -- the clock ------------------------------------------------------------------------------------


@pytest.mark.parametrize("jump_ns", [-3600 * 10**9, 3600 * 10**9])
def test_a_clock_that_jumps_moves_no_step(tmp_path, monkeypatch, jump_ns):
    real = time.time_ns
    training = SmallTraining()
    with stepscope.Profiler(output_dir=tmp_path, **OPTIONS) as profiler:
        for number, batch in enumerate(batches(STEPS)):
            if number == 5:
                monkeypatch.setattr(time, "time_ns", lambda: real() + jump_ns)
                monkeypatch.setattr(time, "time", lambda: (real() + jump_ns) / 1e9)
            training.step(batch)
            profiler.step()
    assert training.losses == bare_losses(STEPS)
    steps = open_run(tmp_path).ranks[0].steps
    assert [step.step for step in steps] == list(range(STEPS))
    for before, after in itertools.pairwise(steps):
        assert 0 <= after.start_ns - before.start_ns < 1800 * 10**9
    assert readable_windows(tmp_path) == {0: [2, 3], 1: [6, 7], 2: [10, 11]}


class FailingHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise RuntimeError(f"cannot log: {record.getMessage()}")


def test_log_handlers_that_raise_cost_the_training_nothing(tmp_path):
    log, handler = logging.getLogger("stepscope"), FailingHandler()
    log.addHandler(handler)
    try:
        training = SmallTraining()
        with stepscope.Profiler(output_dir=tmp_path, **OPTIONS) as profiler:
            for batch in batches(STEPS):
                training.step(batch)
                profiler.step(tokens="no number")
    finally:
        log.removeHandler(handler)
    assert training.losses == bare_losses(STEPS)
    manifest = manifest_of(tmp_path)
    assert [window.state for window in manifest.windows] == ["complete"] * 3
    assert manifest.problems
