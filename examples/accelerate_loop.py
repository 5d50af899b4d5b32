"""Train a small network in a loop written with accelerate, and see where its steps go.

Stepscope adds two lines: the profiler, and `watch` around the loader. The data is synthetic.

    python examples/accelerate_loop.py --output profiles
    torchrun --nproc-per-node 2 examples/accelerate_loop.py --output profiles
    stepscope report profiles
"""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stepscope.adapters.accelerate import AccelerateProfiler


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", default="profiles", help="folder of the runs [%(default)s]")
    parser.add_argument("--epochs", type=int, default=2, help="passes over the data [%(default)s]")
    args = parser.parse_args()

    torch.manual_seed(0)
    inputs = torch.randn(4096, 32)
    data = TensorDataset(inputs, inputs.square().sum(dim=1, keepdim=True))
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(data, batch_size=32, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    steps = 0
    with AccelerateProfiler(output_dir=args.output, wait=10, record_shapes=True) as profiler:
        for _ in range(args.epochs):
            for features, targets in profiler.watch(loader):
                with accelerator.accumulate(model):
                    loss = nn.functional.mse_loss(model(features), targets)
                    accelerator.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
                steps += accelerator.sync_gradients
    if accelerator.is_main_process:
        print(f"trained for {steps} steps")
    accelerator.end_training()


if __name__ == "__main__":
    main()
