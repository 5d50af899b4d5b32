"""The host, its control groups of both versions, and the processes that are watched."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest

from stepscope.monitor.columns import COLUMNS, is_of_host
from stepscope.monitor.host import HostSource
from stepscope.monitor.notes import Notes
from stepscope.monitor.processes import ProcessTree, is_running
from stepscope.system import ControlGroups, Machine

HOST_COLUMNS = [name for name in COLUMNS if is_of_host(name)]


@pytest.fixture
def machine(tmp_path):
    def make(files: dict[str, str]) -> Machine:
        for name, text in files.items():
            path = tmp_path / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return Machine("linux", tmp_path)

    return make


def test_version_2_reads_the_tightest_limit_and_that_groups_use(machine):
    groups = ControlGroups(
        machine(
            {
                "/proc/self/cgroup": "0::/job/task\n",
                "/sys/fs/cgroup/job/memory.max": "1000000",
                "/sys/fs/cgroup/job/memory.current": "900000",
                "/sys/fs/cgroup/job/memory.stat": "anon 5\ninactive_file 150000\n",
                "/sys/fs/cgroup/job/task/memory.max": "max",
                "/sys/fs/cgroup/job/task/memory.current": "100",
                "/sys/fs/cgroup/job/task/cpu.stat": "usage_usec 9\nthrottled_usec 2500\n",
                "/sys/fs/cgroup/job/cpu.stat": "throttled_usec 99\n",
            }
        )
    )
    assert groups.memory() == (750_000, 1_000_000)
    assert groups.throttled_ns() == 2_500_000


def test_version_1_reads_the_same_from_its_own_files(machine):
    unlimited = str(2**63 - 4096)
    groups = ControlGroups(
        machine(
            {
                "/proc/self/cgroup": "5:memory:/docker/x\n2:cpu,cpuacct:/docker/x\n",
                "/sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes": unlimited,
                # A container sees its own group at the mount's root.
                "/sys/fs/cgroup/memory/memory.limit_in_bytes": "8000",
                "/sys/fs/cgroup/memory/memory.usage_in_bytes": "5000",
                "/sys/fs/cgroup/memory/memory.stat": "total_inactive_file 1000\n",
                "/sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.stat": "throttled_time 77\n",
            }
        )
    )
    assert groups.memory() == (4000, 8000)
    assert groups.throttled_ns() == 77


def test_no_limit_is_no_value_and_one_note(machine):
    empty = machine({"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/memory.max": "max"})
    assert ControlGroups(empty).memory() == (None, None)
    assert ControlGroups(empty).throttled_ns() is None
    notes = Notes()
    source = HostSource(os.getpid(), notes, machine=empty)
    values = source.read(HOST_COLUMNS)
    source.read(HOST_COLUMNS)
    assert values["cgroup.memory.limit"] is None
    assert [note.times for note in notes.entries if note.what == "cgroup.memory"] == [2]


def test_machines_values_agree_with_psutil():
    source = HostSource(os.getpid(), Notes())
    source.read(HOST_COLUMNS)
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        values = source.read(HOST_COLUMNS)
        if "host.cpu.utilization" in values:
            break
        time.sleep(0.05)
    assert 0 <= values["host.cpu.utilization"] <= 100
    total = psutil.virtual_memory().total / (1 << 20)
    assert values["host.memory.total"] == pytest.approx(total)
    together = values["host.memory.used"] + values["host.memory.available"]
    assert together == pytest.approx(total)


def test_bridges_and_volumes_do_not_count_twice(machine, monkeypatch):
    disks = {"sda": 10, "sda1": 10, "dm-0": 10}
    cards = {"lo": 7, "eth0": 3, "docker0": 3}
    ahead = [0]

    def disk_counters(perdisk):
        assert perdisk
        return {
            name: SimpleNamespace(read_bytes=size * ahead[0] * 10**6, write_bytes=0)
            for name, size in disks.items()
        }

    def card_counters(pernic):
        assert pernic
        return {
            name: SimpleNamespace(bytes_recv=size * ahead[0] * 10**6, bytes_sent=0)
            for name, size in cards.items()
        }

    monkeypatch.setattr(psutil, "disk_io_counters", disk_counters)
    monkeypatch.setattr(psutil, "net_io_counters", card_counters)
    clock = iter(range(0, 10**12, 10**9))
    wanted = ["disk.read", "network.receive"]
    real = machine({"/sys/block/sda/device/model": "", "/sys/class/net/eth0/device/vendor": ""})
    source = HostSource(os.getpid(), Notes(), machine=real)
    monkeypatch.setattr("stepscope.monitor.host.time.monotonic_ns", lambda: next(clock))
    assert source.read(wanted) == {
        "disk.read": None, "disk.write": None, "network.receive": None, "network.send": None,
    }  # fmt: skip
    ahead[0] = 2
    values = source.read(wanted)
    # Two seconds of the clock lie between two readings of one kind.
    assert (values["disk.read"], values["network.receive"]) == (10.0, 3.0)


def test_infiniband_counts_words_of_four_bytes(machine, monkeypatch):
    counters = "/sys/class/infiniband/mlx5_0/ports/1/counters"
    files = {f"{counters}/port_rcv_data": "1000000", f"{counters}/port_xmit_data": "0"}
    real = machine(files)
    source = HostSource(os.getpid(), Notes(), machine=real)
    clock = iter(range(0, 10**12, 10**9))
    monkeypatch.setattr("stepscope.monitor.host.time.monotonic_ns", lambda: next(clock))
    assert source.read(["infiniband.receive"])["infiniband.receive"] is None
    machine({f"{counters}/port_rcv_data": "3000000"})
    assert source.read(["infiniband.receive"])["infiniband.receive"] == 8.0


def test_what_a_system_does_not_tell_is_a_note(monkeypatch):
    def broken(**_):
        raise RuntimeError("no /proc here")

    monkeypatch.setattr(psutil, "disk_io_counters", broken)
    notes = Notes()
    values = HostSource(os.getpid(), notes).read(["disk.read", "host.memory.used"])
    assert "disk.read" not in values
    assert values["host.memory.used"] > 0
    assert [(n.what, n.why) for n in notes.entries] == [
        ("disk.read", "RuntimeError: no /proc here")
    ]


def test_a_tree_is_the_process_and_all_below_it():
    code = (
        "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', "
        "'import sys; x = bytearray(50 << 20); print(1, flush=True); sys.stdin.read()'], "
        "stdin=subprocess.PIPE); sys.stdin.read(); child.communicate()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        try:
            assert parent.stdout.readline() == b"1\n"  # the grandchild is there
            own = HostSource(os.getpid(), Notes(), is_root_watched=False)
            assert parent.pid in own.pids()
            assert os.getpid() not in own.pids()
            tree = HostSource(parent.pid, Notes())
            assert len(tree.pids()) == 2
            values = tree.read(["process.count", "process.cpu", "process.memory.rss"])
            assert values["process.count"] == 2
            assert values["process.cpu"] is None
            resident = sum(psutil.Process(pid).memory_info().rss for pid in tree.pids())
            assert values["process.memory.rss"] == pytest.approx(resident / (1 << 20), rel=0.05)
            assert values["process.memory.rss"] > 50
        finally:
            parent.communicate()
    after = tree.read(["process.count", "process.memory.rss"])
    assert (after["process.count"], after["process.memory.rss"]) == (0, 0.0)


def test_cpu_time_of_a_child_is_all_of_it_from_its_first_sample_on(monkeypatch):
    # Look for new processes at each reading, however long a look takes on a busy machine.
    monkeypatch.setattr(ProcessTree, "_PAUSES_NS", ((10**15, 0, 0),))
    source = HostSource(os.getpid(), Notes(), is_root_watched=False)
    wanted = ["process.cpu", "process.count"]
    now_ns = [10**10]
    monkeypatch.setattr("stepscope.monitor.host.time.monotonic_ns", lambda: now_ns[0])
    source.read(wanted)
    code = (
        "import sys, time\nwhile time.process_time() < 0.5: pass\n"
        "print(1, flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        try:
            assert child.stdout.readline() == b"1\n"
            now_ns[0] += 10**10
            spent = source.read(wanted)["process.cpu"] / 100 * 10
            times = psutil.Process(child.pid).cpu_times()
            assert spent == pytest.approx(times.user + times.system, abs=0.1)
        finally:
            child.communicate()
    now_ns[0] += 10**10
    assert source.read(wanted) == {
        "process.count": 0, "process.cpu": 0.0, "process.memory.rss": 0.0,
        "process.disk.read": 0.0, "process.disk.write": 0.0,
    }  # fmt: skip


def test_bytes_that_a_child_writes_are_counted(tmp_path, monkeypatch):
    if not hasattr(psutil.Process, "io_counters"):
        pytest.skip("this system does not tell what a process writes")
    monkeypatch.setattr(ProcessTree, "_PAUSES_NS", ((10**15, 0, 0),))
    now_ns = [10**10]
    monkeypatch.setattr("stepscope.monitor.host.time.monotonic_ns", lambda: now_ns[0])
    source = HostSource(os.getpid(), Notes(), is_root_watched=False)
    wanted = ["process.disk.write"]
    assert source.read(wanted)["process.disk.write"] is None
    code = (
        "import os, sys; file = open(sys.argv[1], 'wb'); file.write(bytes(8 << 20)); file.flush(); "
        "os.fsync(file.fileno()); print(1, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, tmp_path / "x"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        try:
            assert child.stdout.readline() == b"1\n"
            told = psutil.Process(child.pid).io_counters().write_bytes
            now_ns[0] += 10**10
            written = source.read(wanted)["process.disk.write"] * 1e6 * 10
            assert written == pytest.approx(told, abs=1e5)
        finally:
            child.communicate()


def test_a_process_runs_until_it_has_ended():
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    ) as child:
        assert is_running(child.pid)
        child.stdin.close()
        # Until somebody asks how it ended it is a zombie, which has ended all the same.
        while psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.02)
        assert not is_running(child.pid)
    assert not is_running(child.pid)


def test_a_process_that_is_gone_is_an_empty_tree():
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    source = HostSource(child.pid, Notes())
    assert list(source.pids()) == []
    assert source.read(["process.count"])["process.count"] == 0
