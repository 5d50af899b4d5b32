"""Profiling flags in your own script, named as in scripts with the Hugging Face Trainer.

    python examples/flags.py --help
    python examples/flags.py --enable-profiling --profiler-output-dir traces
    stepscope report traces

`stepscope dialects` lists the other dialects; `dialect="native"` has every option.
"""

from __future__ import annotations

import argparse

import torch

import stepscope


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small model.")
    parser.add_argument("--max-steps", type=int, default=50)
    parser.add_argument("--lr", type=float, default=0.01)
    stepscope.add_arguments(parser, dialect="hf")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    loss = torch.zeros(())

    # Without --enable-profiling, the profiler does nothing.
    with stepscope.Profiler.from_args(args) as profiler:
        for _ in range(args.max_steps):
            inputs, targets = torch.randn(32, 64), torch.randint(0, 8, (32,))
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    print(f"loss {loss.item():.4f} after {args.max_steps} steps")


if __name__ == "__main__":
    main()
