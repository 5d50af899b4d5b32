"""A main function that parses its own flags: a decorator takes ours away before it sees them.

    python examples/decorator.py --steps 40 --profiling --prof_dir traces

The words are those of the dialect "sfm"; a step is counted where `profiler.step()` is called.
"""

from __future__ import annotations

import argparse

import torch

import stepscope


@stepscope.profiled("sfm")
def main(profiler: stepscope.Profiler) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()  # sees no flag of ours

    torch.manual_seed(0)
    model = torch.nn.Linear(128, 128)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(args.steps):
        model(torch.randn(64, 128)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        profiler.step()


if __name__ == "__main__":
    main()
