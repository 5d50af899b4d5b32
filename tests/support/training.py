"""A small real training, deterministic to the last bit, for tests of the capture."""

from __future__ import annotations

from collections.abc import Iterator

import torch


class SmallTraining:
    """A two-layer network on fixed data; `losses` has every step's loss, exactly.

    Args:
        seed: Decides weights and data.
    """

    def __init__(self, seed: int = 7) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.first = torch.randn(16, 32, generator=generator).mul_(0.1).requires_grad_()
        self.second = torch.randn(32, 4, generator=generator).mul_(0.1).requires_grad_()
        self.optimizer = torch.optim.SGD([self.first, self.second], lr=0.05, momentum=0.9)
        self.losses: list[float] = []

    def step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> float:
        """Train on one batch."""
        inputs, targets = batch
        self.optimizer.zero_grad()
        loss = (inputs.matmul(self.first).relu().matmul(self.second) - targets).square().mean()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())
        return self.losses[-1]


def batches(count: int, seed: int = 11) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """`count` batches, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        yield torch.randn(8, 16, generator=generator), torch.randn(8, 4, generator=generator)


def bare_losses(steps: int) -> list[float]:
    """The losses of the training without any profiler."""
    training = SmallTraining()
    for batch in batches(steps):
        training.step(batch)
    return training.losses
