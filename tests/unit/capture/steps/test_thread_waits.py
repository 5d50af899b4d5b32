"""Waits of the training thread for threads that read a DataLoader."""

from __future__ import annotations

import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from stepscope.capture.steps.detector import Detector, Policy

BATCHES, READ_S = 6, 0.03


class Slow(Dataset):
    def __len__(self):
        return BATCHES

    def __getitem__(self, index):
        time.sleep(READ_S)
        return torch.full((4,), float(index))


class Timer:
    """Keeps what it is told."""

    def __init__(self):
        self.thread = threading.get_ident()
        self.waited_ns = 0
        self.reads = []
        self.has_notes = False

    @contextmanager
    def waiting(self):
        started_ns = time.perf_counter_ns()
        yield
        self.waited_ns += time.perf_counter_ns() - started_ns

    def add_wait(self, duration_ns):
        self.waited_ns += duration_ns

    def see_loader(self, iterator, *, read=None):
        self.reads.append(read)

    def note(self, kind, value=None):
        pass


class NoBatches(Policy):
    """Leaves waits of the training thread itself alone."""

    def wants_batch(self, iterator):
        return False

    def wants_workers(self, data, *, is_start):
        return False


def installed(timer):
    detector = Detector(NoBatches(), times_calls=True)
    detector.attach(timer)
    detector.install()
    return detector


@pytest.fixture
def timer():
    found = Timer()
    detector = installed(found)
    yield found
    detector.remove()


def from_a_queue():
    handed = queue.Queue(maxsize=2)

    def produce():
        for batch in DataLoader(Slow()):
            handed.put(batch)
        handed.put(None)

    threading.Thread(target=produce, daemon=True).start()
    while handed.get() is not None:
        pass


def from_two_queues():
    """One thread reads, another one changes what it read."""
    read, changed = queue.Queue(maxsize=2), queue.Queue(maxsize=2)

    def produce():
        for batch in DataLoader(Slow()):
            read.put(batch)
        read.put(None)

    def change():
        while (batch := read.get()) is not None:
            changed.put(batch)
        changed.put(None)

    threading.Thread(target=produce, daemon=True).start()
    threading.Thread(target=change, daemon=True).start()
    while changed.get() is not None:
        pass


def from_a_future():
    batches = iter(DataLoader(Slow()))
    with ThreadPoolExecutor(1) as pool:
        while pool.submit(next, batches, None).result() is not None:
            pass


def from_a_thread_that_ends():
    batches, found = iter(DataLoader(Slow())), [True]
    while found[-1] is not None:
        thread = threading.Thread(target=lambda: found.append(next(batches, None)))
        thread.start()
        thread.join()


@pytest.mark.parametrize(
    "train", [from_a_queue, from_two_queues, from_a_future, from_a_thread_that_ends]
)
def test_waits_for_a_thread_that_reads_are_input(timer, train):
    started_ns = time.perf_counter_ns()
    train()
    took_ns = time.perf_counter_ns() - started_ns
    # All the program does is wait; what passed before the first hand-over may be missing, which is
    # later where a busy machine starts the threads late.
    assert took_ns >= timer.waited_ns >= (BATCHES - 3) * READ_S * 1e9
    assert all(read.is_beside for read in timer.reads)
    assert sum(read.duration_ns for read in timer.reads) >= (BATCHES - 3) * READ_S * 1e9
    assert sum(read.batch is not None for read in timer.reads) == 1


def test_other_waits_are_no_input(timer):
    handed = queue.Queue()

    def compute():
        for _ in range(3):
            time.sleep(0.01)
            handed.put(1)

    from_a_queue()
    waited_ns = timer.waited_ns
    threading.Thread(target=compute, daemon=True).start()
    for _ in range(3):
        handed.get()
    assert timer.waited_ns == waited_ns


def test_nothing_is_wrapped_until_a_thread_reads(timer):
    before = threading.Condition.wait, threading.Condition.notify, threading.Thread.join
    for _ in DataLoader(Slow()):
        break
    assert (threading.Condition.wait, threading.Condition.notify, threading.Thread.join) == before


def test_everything_is_restored():
    before = threading.Condition.wait, threading.Condition.notify, threading.Thread.join
    found = Timer()
    detector = installed(found)
    from_a_queue()
    assert threading.Condition.wait is not before[0]
    detector.remove()
    assert (threading.Condition.wait, threading.Condition.notify, threading.Thread.join) == before
