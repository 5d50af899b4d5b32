"""A click command; a decorator adds Stepscope's options to its own.

python examples/click_options.py --steps 40 --profile --profile-output-dir traces
"""

from __future__ import annotations

import click
import torch

import stepscope


@click.command()
@click.option("--steps", default=40, show_default=True)
@stepscope.click_options("native")
def main(steps: int, profiler: stepscope.Profiler) -> None:
    """Train a small model."""
    torch.manual_seed(0)
    model = torch.nn.Linear(128, 128)
    optimizer = torch.optim.AdamW(model.parameters())
    with profiler:
        for _ in range(steps):
            model(torch.randn(64, 128)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()


if __name__ == "__main__":
    main()
