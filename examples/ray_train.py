"""A training function of Ray Train, recorded on each of two workers on this machine's CPU.

    python examples/ray_train.py [--output-dir profiles]

Requires Ray: pip install 'ray[train]'
"""

from __future__ import annotations

import argparse
from pathlib import Path

import ray
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model

from stepscope.adapters.ray import profiled_worker


def train_loop(config, profiler):
    torch.manual_seed(0)
    model = prepare_model(torch.nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = [torch.randn(16, 64) for _ in range(config["steps"])]
    for batch in profiler.watch(loader):
        optimizer.zero_grad()
        with profiler.phase("forward"):
            loss = model(batch).square().mean()
        with profiler.phase("backward"):
            loss.backward()
        optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output-dir", default="profiles")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    folder = Path(args.output_dir).absolute()

    ray.init(num_cpus=args.workers, include_dashboard=False, object_store_memory=100 << 20)
    trainer = TorchTrainer(
        profiled_worker(train_loop, output_dir=folder, wait=3, warmup=1, active=2),
        train_loop_config={"steps": args.steps},
        scaling_config=ScalingConfig(
            num_workers=args.workers, use_gpu=False, resources_per_worker={"CPU": 1}
        ),
        run_config=RunConfig(storage_path=str(folder / "ray")),
    )
    trainer.fit()
    ray.shutdown()


if __name__ == "__main__":
    main()
