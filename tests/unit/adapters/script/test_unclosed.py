"""Manifests of processes that are gone: what is noted for them, and what is left alone."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import threading
import time

import pytest

from stepscope.adapters.script.launch import close_manifest
from stepscope.run.layout import WINDOW_FILE, RankLayout
from stepscope.run.manifest import (
    FinishedRecord,
    RankManifest,
    WindowRecord,
    exit_text,
    read_rank,
    write_record,
)
from stepscope.run.step_record import StepRecord, encode_step


@pytest.fixture(scope="module")
def gone():
    """The ID of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    return process.pid


def closed(tmp_path, exit_code, **fields):
    """The manifest, after it was closed for a process with this exit code."""
    rank = RankLayout(tmp_path)
    write_record(rank.manifest, RankManifest(rank=0, **fields))
    records = [StepRecord(step=n, start_ns=n, dur_ns=1, cpu_ns=1) for n in range(3)]
    records.append(StepRecord(step=3, start_ns=3, dur_ns=1, cpu_ns=1, is_partial=True))
    rank.steps.write_bytes(b"".join(encode_step(record) + b"\n" for record in records))
    close_manifest(rank, exit_code)
    return read_rank(rank.manifest)


@pytest.mark.parametrize(
    ("exit_code", "words"),
    [
        (137, "was killed by SIGKILL"),
        (139, "was killed by SIGSEGV"),
        (4, "ended with exit code 4"),
        (0, "ended with exit code 0"),
        (255, "ended with exit code 255"),
        (None, "was killed or ended itself"),
    ],
)
def test_a_process_that_is_gone_is_told_of(tmp_path, gone, exit_code, words):
    manifest = closed(tmp_path, exit_code, process_id=gone)
    assert manifest.state == "stopped"
    assert manifest.ended == f"{words} after 3 steps, before it could close the recording"
    assert manifest.steps == 3


def test_a_process_that_still_runs_is_left_alone(tmp_path):
    manifest = closed(tmp_path, 1, process_id=os.getpid())
    assert (manifest.state, manifest.ended) == ("running", "")


@pytest.mark.parametrize(
    ("state", "ended", "exit_code", "expected"),
    [
        ("finished", "finished after 3 steps", 0, ("finished", "finished after 3 steps")),
        ("finished", "finished after 3 steps", None, ("finished", "finished after 3 steps")),
        (
            "finished",
            "finished after 3 steps",
            3,
            ("stopped", "finished after 3 steps; then the process ended with exit code 3"),
        ),
        (
            "stopped",
            "SystemExit (exit code 3) in step 3",
            3,
            ("stopped", "SystemExit (exit code 3) in step 3"),
        ),
        (
            "stopped",
            "SystemExit (exit code 3) in step 3",
            0,
            ("finished", "finished after 3 steps"),
        ),
        ("failed", "ValueError in step 3", 1, ("failed", "ValueError in step 3")),
        ("stopped", "SIGTERM in step 3", 143, ("stopped", "SIGTERM in step 3")),
    ],
)
def test_what_a_process_said_itself_gives_way_only_to_its_exit_code(
    tmp_path, gone, state, ended, exit_code, expected
):
    manifest = closed(tmp_path, exit_code, process_id=gone, state=state, ended=ended, steps=3)
    assert (manifest.state, manifest.ended) == expected


def test_windows_whose_files_are_still_made_are_waited_for(tmp_path, gone):
    folder = RankLayout(tmp_path).window(0)
    folder.mkdir()
    noted_at = []

    def finish():
        time.sleep(0.2)
        noted_at.append(time.monotonic_ns())
        write_record(folder / WINDOW_FILE, FinishedRecord(index=0))

    thread = threading.Thread(target=finish)
    thread.start()
    window = WindowRecord(index=0, state="saving")
    closed(tmp_path, 137, process_id=gone, windows=(window,))
    closed_at = time.monotonic_ns()
    thread.join()
    assert noted_at
    assert noted_at[0] < closed_at


@pytest.mark.parametrize(
    ("code", "number"), [(None, 0), (3, 3), (-1, 255), (256, 0), ("no data", 1), (True, 1)]
)
def test_an_exit_code_is_what_python_makes_of_it(code, number):
    program = f"raise SystemExit({code!r})"
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True)
    assert done.returncode == number
    assert exit_text(code) == f"SystemExit (exit code {number})"


def test_the_manifest_keeps_everything_else(tmp_path, gone):
    before = RankManifest(rank=0, process_id=gone, host="node", world_size=4)
    after = closed(tmp_path, 9, process_id=gone, host="node", world_size=4)
    changed = dataclasses.replace(before, state=after.state, ended=after.ended, steps=after.steps)
    assert changed == after
