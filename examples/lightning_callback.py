"""Train a small network with Lightning, and see where its steps go.

Stepscope adds one line: the callback, or with --profiler the profiler. The data is synthetic.

    python examples/lightning_callback.py --output profiles
    stepscope report profiles
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stepscope.adapters.lightning import StepscopeCallback, StepscopeProfiler


class Rings(LightningModule):
    """Distinguishes two rings of points."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 256), nn.ReLU(), nn.Linear(256, 2))

    def loss(self, batch: list[torch.Tensor]) -> torch.Tensor:
        points, ring = batch
        return nn.functional.cross_entropy(self.layers(points), ring)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        return self.loss(batch)

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        self.log("validation_loss", self.loss(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def rings(count: int) -> TensorDataset:
    """Points on two rings, with noise."""
    generator = torch.Generator().manual_seed(0)
    ring = torch.randint(2, (count,), generator=generator)
    angle = 6.283 * torch.rand(count, generator=generator)
    noise = 0.1 * torch.randn(count, 2, generator=generator)
    points = (1.0 + ring)[:, None] * torch.stack((angle.cos(), angle.sin()), dim=1) + noise
    return TensorDataset(points, ring)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", default="profiles", help="folder of the runs [%(default)s]")
    parser.add_argument("--steps", type=int, default=40, help="optimizer steps [%(default)s]")
    parser.add_argument(
        "--profiler", action="store_true", help="give the Trainer a profiler instead of a callback"
    )
    args = parser.parse_args()

    options = {"output_dir": args.output, "wait": 10, "record_shapes": True}
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as checkpoints:
        trainer = Trainer(
            max_steps=args.steps,
            accelerator="cpu",
            accumulate_grad_batches=2,
            val_check_interval=40,
            logger=False,
            default_root_dir=checkpoints,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=None if args.profiler else [StepscopeCallback(**options)],
            profiler=StepscopeProfiler(**options) if args.profiler else None,
        )
        trainer.fit(
            Rings(),
            DataLoader(rings(8192), batch_size=64, shuffle=True),
            DataLoader(rings(512), batch_size=64),
        )
    print(f"trained for {trainer.global_step} steps")


if __name__ == "__main__":
    main()
