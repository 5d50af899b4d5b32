"""A training that waits for its input: each sample takes 4 ms to read, as from a slow disk.

stepscope run -- python slow_input.py
"""

from __future__ import annotations

import time

import torch
from torch.utils.data import DataLoader, Dataset


class SlowDisk(Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return 640

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.004)  # this is what makes the training slow
        return torch.randn(64), index % 10


def main() -> None:
    torch.set_num_threads(1)  # enough for a model this small
    loader = DataLoader(SlowDisk(), batch_size=16)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 2048),
        torch.nn.ReLU(),
        torch.nn.Linear(2048, 2048),
        torch.nn.ReLU(),
        torch.nn.Linear(2048, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for features, labels in loader:
        loss = torch.nn.functional.cross_entropy(model(features), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
