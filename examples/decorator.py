"""A main function that parses its own flags; a decorator removes Stepscope's before it runs.

    python examples/decorator.py --steps 40 --profiling --prof_dir traces

The flags are those of the dialect "sfm". Each call of `profiler.step()` ends a step.
"""

from __future__ import annotations

import argparse

import torch

import stepscope


@stepscope.profiled("sfm")
def main(profiler: stepscope.Profiler) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()  # does not see Stepscope's flags

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
