"""What is noted of a loader."""

from __future__ import annotations

import os
from types import SimpleNamespace

from stepscope.capture.steps import loaders
from stepscope.capture.steps.loaders import LoaderWatch, usable_cpus


def test_a_loader_is_noted_once(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    noted = []
    watch = LoaderWatch(noted.append)
    loader = SimpleNamespace(num_workers=3, prefetch_factor=2)
    for _ in range(3):
        watch.see(loader, iter([]))
    assert len(noted) == 1
    assert (noted[0].workers, noted[0].prefetch_factor, noted[0].local_ranks) == (3, 2, 4)
    assert 1 <= noted[0].cpus <= (os.cpu_count() or 1)
    assert noted[0].worker_cpu_share is None


def test_what_is_no_loader_is_left_alone():
    noted = []
    LoaderWatch(noted.append).see([1, 2, 3], object())
    assert noted == []


def test_how_busy_the_workers_are(monkeypatch):
    needed = {7: 100, 8: 200}
    now = [0]
    monkeypatch.setattr(loaders, "_needed_ns_of", lambda pids: {pid: needed[pid] for pid in pids})
    monkeypatch.setattr(loaders.time, "monotonic_ns", lambda: now[0])
    workers = [SimpleNamespace(pid=7), SimpleNamespace(pid=8)]
    iterator = SimpleNamespace(_num_workers=2, _workers=workers)
    noted = []
    watch = LoaderWatch(noted.append)
    watch.see(iterator)
    now[0] += 2_000_000_000
    needed.update({7: 100 + 2_000_000_000, 8: 200 + 1_000_000_000})
    watch.see(iterator)
    assert noted[-1].worker_cpu_share == 0.75


def test_usable_cpus():
    assert usable_cpus() >= 1
