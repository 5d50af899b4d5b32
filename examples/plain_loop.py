"""Your own training loop: waits, phases, throughput, and three steps in full detail.

python examples/plain_loop.py [--output-dir profiles]
stepscope report profiles
"""

from __future__ import annotations

import argparse

import torch
from torch.utils.data import DataLoader, TensorDataset

import stepscope


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output-dir", default="profiles")
    args = parser.parse_args()

    torch.manual_seed(0)
    data = TensorDataset(torch.randn(480, 64), torch.randint(0, 8, (480,)))
    loader = DataLoader(data, batch_size=16, shuffle=True)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    with stepscope.Profiler(output_dir=args.output_dir, wait=5, warmup=2, active=3) as profiler:
        for inputs, targets in profiler.watch(loader):
            with profiler.phase("forward"):
                loss = torch.nn.functional.cross_entropy(model(inputs), targets)
            with profiler.phase("backward"):
                loss.backward()
            with profiler.phase("optimizer"):
                optimizer.step()
                optimizer.zero_grad()
            profiler.count(samples=len(inputs))


if __name__ == "__main__":
    main()
