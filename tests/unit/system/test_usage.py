"""What this process uses of the machine, and may use."""

from __future__ import annotations

import pytest

from stepscope import system as machine
from stepscope.system import Machine


def test_the_peak_is_at_least_what_is_resident(monkeypatch):
    rusage = pytest.importorskip("resource")
    held = machine.resident_bytes()
    if held is None:
        pytest.skip("the system does not say what is resident")
    assert machine.peak_resident_bytes() >= 0.9 * held
    # Linux notes the peak late: what it noted may be below what is resident now.
    monkeypatch.setattr(rusage, "getrusage", lambda _: type("Usage", (), {"ru_maxrss": 1})())
    monkeypatch.setattr(machine, "resident_bytes", lambda: 5 << 30)
    assert machine.peak_resident_bytes() == 5 << 30
    monkeypatch.setattr(machine, "resident_bytes", lambda: None)
    assert machine.peak_resident_bytes() in {1, 1024}


def system(tmp_path, files):
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Machine("linux", tmp_path, {}, 0, 8)


@pytest.mark.parametrize(
    ("files", "cpus", "memory"),
    [
        ({"proc/meminfo": "MemAvailable: 100 kB\n"}, 8, 100 << 10),
        (
            {
                "proc/meminfo": "MemAvailable: 100 kB\n",
                "proc/self/cgroup": "0::/job/step\n",
                "sys/fs/cgroup/job/cpu.max": "250000 100000\n",
                "sys/fs/cgroup/job/memory.max": "51200\n",
                "sys/fs/cgroup/job/memory.current": "20480\n",
            },
            3,
            30 << 10,
        ),
        ({}, 8, None),
    ],
)
def test_control_groups_take_away_cpus_and_memory(tmp_path, monkeypatch, files, cpus, memory):
    found = system(tmp_path, files)
    monkeypatch.setattr(machine, "this_machine", lambda: found)
    assert machine.usable_cpus() == cpus
    assert machine.available_bytes() == memory
