"""Commands in sessions of their own: how they end, and that nothing of them is left."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import uuid

import psutil
import pytest

from stepscope.errors import UsageError
from stepscope.trial import processes
from stepscope.trial.processes import MARK, CpuClock, Limits, Start, own_standard_input, run_apart

pytestmark = pytest.mark.skipif(os.name == "nt", reason="POSIX sessions")
# A child in the session, and one that leaves it and ignores the polite signal.
FAMILY = """
import signal, subprocess, sys, time
sleep = [sys.executable, "-c",
         "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"]
subprocess.Popen(sleep)
subprocess.Popen(sleep, start_new_session=True)
print("started", flush=True)
{end}
"""


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch):
    """What ignores the polite signal is waited for in vain."""
    monkeypatch.setattr(processes, "_GRACE_S", 0.5)


def run(tmp_path, code, most_s=60.0, is_done=lambda: False, linger_s=0.2, hung_s=math.inf):
    mark = uuid.uuid4().hex
    command = [sys.executable, "-c", code]
    limits = Limits(most_s, is_done, linger_s, hung_s)
    ended = run_apart(Start(command, dict(os.environ), tmp_path / "log"), mark, limits)
    assert left_of(mark) == []
    return ended


def left_of(mark):
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def test_an_end_of_its_own(tmp_path):
    ended = run(tmp_path, "import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)")
    assert ended.exit_code == 7
    assert ended.wall_s > 0
    assert sorted((tmp_path / "log").read_text().split()) == ["err", "out"]


def test_a_signal(tmp_path):
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert run(tmp_path, code).exit_code == -9


def test_one_that_hangs_is_ended_with_all_that_it_started(tmp_path):
    ended = run(tmp_path, FAMILY.format(end="time.sleep(600)"), most_s=2.0)
    assert ended.exit_code is None
    assert "started" in (tmp_path / "log").read_text()


@pytest.mark.slow
def test_what_outlives_its_parent_is_ended(tmp_path):
    assert run(tmp_path, FAMILY.format(end="sys.exit(0)")).exit_code == 0


def test_one_that_is_done_and_lingers_is_a_success(tmp_path):
    assert run(tmp_path, "import time; time.sleep(600)", is_done=lambda: True).exit_code == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_if_we_are_ended(tmp_path, number):
    before = signal.getsignal(signal.SIGTERM)
    others = psutil.Process().children(recursive=True)
    with pytest.raises(KeyboardInterrupt):
        run(
            tmp_path,
            FAMILY.format(end="time.sleep(600)"),
            is_done=lambda: os.kill(os.getpid(), number),
        )
    assert signal.getsignal(signal.SIGTERM) == before
    assert not [
        child
        for child in psutil.Process().children(recursive=True)
        if child not in others and child.status() != psutil.STATUS_ZOMBIE
    ]


def test_a_bystander_is_left_alone(tmp_path):
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as bystander:
        try:
            run(tmp_path, "pass")
            assert bystander.poll() is None
        finally:
            bystander.kill()


@pytest.mark.slow
def test_what_others_take_of_the_cpus_does_not_count_for_what_hangs(tmp_path, monkeypatch):
    def with_others(share):
        monkeypatch.setattr(CpuClock, "others_share_until", lambda *_: share)

    takes_longer, hangs = "import time; time.sleep(3)", "import time; time.sleep(600)"
    with_others(0.0)
    assert run(tmp_path, takes_longer, hung_s=1.0).exit_code is None
    with_others(0.9)
    assert run(tmp_path, takes_longer, hung_s=1.0).exit_code == 0
    assert run(tmp_path, hangs, hung_s=0.1).exit_code is None
    assert run(tmp_path, hangs, hung_s=1.0, most_s=2.0).wall_s < 5.0


@pytest.mark.slow
def test_a_command_that_computes_does_not_count_as_another(tmp_path):
    ended = run(tmp_path, "while True: pass", hung_s=1.0)
    assert ended.exit_code is None
    assert ended.wall_s < 15.0  # ten times as long at most, however busy the machine is


def test_a_program_that_does_not_exist(tmp_path):
    with pytest.raises(UsageError, match="no-such-program"):
        start = Start(["no-such-program"], {}, tmp_path / "log")
        run_apart(start, "mark", Limits(1.0, lambda: False))


def reading(tmp_path, source, code="import sys; print(len(sys.stdin.read()))"):
    start = Start(
        [sys.executable, "-c", code],
        dict(os.environ),
        tmp_path / "log",
        standard_input=source,
    )
    ended = run_apart(start, uuid.uuid4().hex, Limits(20.0, lambda: False))
    return ended.exit_code, (tmp_path / "log").read_text().strip()


def test_each_command_reads_the_whole_standard_input(tmp_path, monkeypatch):
    (tmp_path / "given").write_bytes(b"x" * 300_000)
    with (tmp_path / "given").open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        given = own_standard_input()
    for _ in range(3):
        assert reading(tmp_path, given) == (0, "300000")


def test_standard_input_that_may_never_end_is_not_passed_on(tmp_path, monkeypatch):
    reader, writer = os.pipe()
    os.write(writer, b"first line\n")
    with os.fdopen(reader) as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert reading(tmp_path, own_standard_input()) == (0, "0")
    os.close(writer)


def test_a_directory_of_its_own(tmp_path):
    command = [sys.executable, "-c", "import os; print(os.getcwd())"]
    (tmp_path / "there").mkdir()
    start = Start(command, dict(os.environ), tmp_path / "log", tmp_path / "there")
    run_apart(start, uuid.uuid4().hex, Limits(20.0, lambda: False))
    assert (tmp_path / "log").read_text().strip() == str(tmp_path / "there")
