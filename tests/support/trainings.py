"""Small real trainings on the CPU, recorded as people do it without a schedule."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

BATCH = 64


class Samples(Dataset):
    """Samples that take their time, all of them or those of every n-th batch.

    Args:
        batches: How many batches there are.
        delay_s: How long each slow sample takes.
        every: Which batches are slow: the first of so many.
    """

    def __init__(self, batches: int = 16, delay_s: float = 0.0, every: int = 1):
        self.batches = batches
        self.delay_s = delay_s
        self.every = every

    def __len__(self) -> int:
        return self.batches * BATCH

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.delay_s and index // BATCH % self.every == 0:
            time.sleep(self.delay_s)
        return torch.full((256,), float(index % 7))


class Net(torch.nn.Module):
    """Two layers; about 5 ms a step on one thread."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256)
        )

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.body(batch)


class Training:
    """A model with its optimizer, and loops over batches as people write them."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = Net()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def backward(self, batch: torch.Tensor) -> None:
        self.model(batch).square().mean().backward()

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def loop(self, batches: Iterable[torch.Tensor], accumulate: int = 1) -> None:
        for number, batch in enumerate(batches, start=1):
            self.backward(batch)
            if number % accumulate == 0:
                self.update()

    def evaluate(self, batches: Iterable[torch.Tensor]) -> None:
        with torch.no_grad():
            for batch in batches:
                self.model(batch)


def loader(samples: Samples | None = None, workers: int = 0) -> DataLoader:
    return DataLoader(samples or Samples(), batch_size=BATCH, num_workers=workers)


def record_without_schedule(path: Path, work: Callable[[], None], **options: bool) -> Path:
    """Record a function with torch's profiler; nothing annotates steps."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities, **options) as profiler:
            work()
        profiler.export_chrome_trace(str(path))
    finally:
        torch.set_num_threads(threads)
    return path
