"""What is noted of a loader."""

from __future__ import annotations

import os
from types import SimpleNamespace

import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from stepscope.capture.steps import loaders
from stepscope.capture.steps.loaders import LoaderWatch


def test_a_loader_is_noted_once(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    noted = []
    watch = LoaderWatch(noted.append)
    loader, iterator = SimpleNamespace(num_workers=3, prefetch_factor=2), iter([])
    for _ in range(3):
        watch.see(loader, iterator)
        watch.look()
    assert len(noted) == 1
    assert (noted[0].workers, noted[0].prefetch_factor, noted[0].local_ranks) == (3, 2, 4)
    assert 1 <= noted[0].cpus <= (os.cpu_count() or 1)
    assert noted[0].worker_cpu_share is None


def test_what_is_no_loader_is_left_alone():
    noted = []
    watch = LoaderWatch(noted.append)
    watch.see([1, 2, 3], object())
    watch.look()
    assert noted == []


def test_how_busy_the_workers_are(monkeypatch):
    times = {7: (100, 0), 8: (200, 50)}
    now = [10**9]
    monkeypatch.setattr(loaders, "_times_of", lambda pids: {pid: times[pid] for pid in pids})
    monkeypatch.setattr(loaders.time, "monotonic_ns", lambda: now[0])
    workers = [SimpleNamespace(pid=7), SimpleNamespace(pid=8)]
    iterator = SimpleNamespace(_num_workers=2, _workers=workers)
    noted = []
    watch = LoaderWatch(noted.append)
    watch.see(iterator)
    assert watch.look() == 0.05
    now[0] += 2_000_000_000
    # The second one computes for half a second, and has no CPU for a whole one.
    times.update({7: (100 + 2_000_000_000, 0), 8: (200 + 500_000_000, 50 + 1_000_000_000)})
    watch.see(iterator)
    assert watch.look() == 0.1
    assert noted[-1].worker_cpu_share == round(2.5 / 3, 3)


class Iterator:
    """Like an iterator of a DataLoader with workers."""

    def __init__(self, dataset, *pids, persistent=False):
        self._dataset = dataset
        self._num_workers = len(pids)
        self._persistent_workers = persistent
        self._workers = [SimpleNamespace(pid=pid) for pid in pids]


class Dataset:
    """Something that can be referred to weakly, as datasets can."""


def test_an_iterator_at_the_address_of_one_that_is_gone_is_another(monkeypatch):
    asked = []
    monkeypatch.setattr(loaders, "_times_of", lambda pids: asked.append(pids) or {})
    noted, dataset = [], Dataset()
    watch = LoaderWatch(noted.append)
    addresses = set()
    for epoch in range(20):
        iterator = Iterator(dataset, 100 + epoch)
        addresses.add(id(iterator))
        watch.see(iterator)
        watch.see(iterator)
        watch.look()
        del iterator
    assert len(addresses) < 20  # they do come again
    assert asked == [(100 + epoch,) for epoch in range(20)]
    assert noted[-1].starts == 20
    assert noted[-1].is_persistent is False


def test_workers_that_live_on_start_once():
    noted, dataset = [], Dataset()
    watch = LoaderWatch(noted.append)
    kept = Iterator(dataset, 7, 8, persistent=True)
    for _ in range(3):
        watch.see(SimpleNamespace(num_workers=2), kept)
        watch.look()
    assert noted[-1].starts == 1
    assert noted[-1].is_persistent is True


def test_the_loader_of_an_evaluation_is_not_the_trainings():
    noted, training, evaluation = [], Dataset(), Dataset()
    watch = LoaderWatch(noted.append)
    for epoch in range(3):
        iterator = Iterator(training, 10 * epoch + 1, 10 * epoch + 2)
        for _ in range(5):
            watch.see(iterator)
        other = Iterator(evaluation)
        for _ in range(2):
            watch.see(other)
        watch.look()
    assert noted[-1].workers == 2
    assert noted[-1].starts == 3


def test_an_evaluation_larger_than_an_epoch_is_not_the_trainings():
    noted, training, evaluation = [], Dataset(), Dataset()
    watch = LoaderWatch(noted.append)
    for epoch in range(3):
        iterator = Iterator(training, 10 * epoch + 1, 10 * epoch + 2)
        for _ in range(2):
            watch.see(iterator)
            watch.is_trained_on = True
        other = Iterator(evaluation)
        for _ in range(5):
            watch.see(other)
        watch.look()
    assert noted[-1].workers == 2
    assert noted[-1].starts == 3


def test_one_batch_of_the_training_outweighs_those_of_an_evaluation_before_it():
    noted = []
    watch = LoaderWatch(noted.append)
    other = Iterator(Dataset())
    for _ in range(5):
        watch.see(other)
    watch.look()
    assert noted[-1].workers == 0
    iterator = Iterator(Dataset(), 1, 2)
    watch.see(iterator)
    watch.is_trained_on = True
    watch.look()
    assert noted[-1].workers == 2


def test_loaders_without_number_are_not_kept():
    watch, kept = LoaderWatch(lambda _: None), []
    for pid in range(50):
        kept.append(Iterator(Dataset(), pid + 1))
        watch.see(kept[-1])
    assert len(watch._loaders) <= 8


def test_an_iterable_dataset_is_noted():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(4))

    for dataset, is_iterable in ((Stream(), True), (TensorDataset(torch.zeros(4)), False)):
        noted = []
        watch = LoaderWatch(noted.append)
        watch.see(iter(DataLoader(dataset)))
        watch.look()
        assert noted[0].is_iterable is is_iterable
