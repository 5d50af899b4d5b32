"""A training without any reference to Stepscope, recorded from outside.

stepscope run -- python examples/unmodified_script.py
stepscope run -- torchrun --nproc-per-node 2 examples/unmodified_script.py
"""

from __future__ import annotations

import os

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    distributed = "RANK" in os.environ
    if distributed:
        torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(640, 64), torch.randint(0, 8, (640,)))
    model: torch.nn.Module = torch.nn.Sequential(
        torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)
    )
    if distributed:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    loss = torch.zeros(())
    for inputs, targets in DataLoader(data, batch_size=32):
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"loss {loss.item():.4f}")
    if distributed:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
