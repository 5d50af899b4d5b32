"""When a loader's batches are ready: workers, their queue and the CPUs that they share."""

from __future__ import annotations

import random

from tests.support.simulator.program import Loader


class Batches:
    """When batches are ready, of a loader with workers."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self.began = 0
        self.taken: list[int] = []  # of this epoch, when the main thread took each
        self.ready: list[int] = []
        self.worker_free: list[int] = []
        self.cpu_free = [0] * max(1, loader.cpus - 1)
        self.dice = random.Random(7)

    def begin_epoch(self, now: int) -> int:
        """Start an epoch's iterator; returns when the main thread has done so."""
        loader = self.loader
        is_first = not self.worker_free
        self.taken, self.ready = [], []
        now += loader.sampler_ns
        if is_first or not loader.is_persistent:
            self.worker_free = []
            for _ in range(loader.workers):
                now += loader.start_ns
                self.worker_free.append(now + loader.worker_start_ns)
        self.began = now
        return now

    def take(self, now: int) -> int:
        """When the next batch is ready, which the main thread wants at `now`."""
        loader = self.loader
        number = len(self.taken)
        ahead = loader.workers * loader.prefetch
        last = number + ahead if not loader.epoch else min(number + ahead, loader.epoch)
        while len(self.ready) < last:
            batch = len(self.ready)
            if batch - ahead >= number:
                break
            asked = self.taken[batch - ahead] if batch >= ahead else self.began
            worker = batch % loader.workers
            start = max(asked, self.worker_free[worker])
            factor = 1 + loader.spread * (2 * self.dice.random() - 1) if loader.spread else 1.0
            has_data = start + round(loader.waiting_ns * factor)
            cpu_ns = round(loader.cpu_ns * factor) + loader.send_ns
            cpus = self.cpu_free
            at = cpus.index(min(cpus))
            done = max(has_data, cpus[at]) + cpu_ns
            cpus[at] = done
            self.worker_free[worker] = done
            self.ready.append(done)
        return self.ready[number]

    def took(self, now: int) -> None:
        """Note when the main thread has the batch, and asks for another one."""
        self.taken.append(now)
