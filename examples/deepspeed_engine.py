"""Follow a DeepSpeed engine on the CPU: steps, phases and FLOPs profile.

    python examples/deepspeed_engine.py [--output-dir profiles] [--steps 12]

Requires deepspeed, without building its operators: DS_BUILD_OPS=0 pip install deepspeed
"""

from __future__ import annotations

import argparse
import os
import socket

# DeepSpeed reads its device and its launcher's settings from the environment.
os.environ.setdefault("DS_ACCELERATOR", "cpu")
if "RANK" not in os.environ:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))

import deepspeed
import torch

import stepscope
from stepscope.adapters.deepspeed import follow

BATCH = 8
ACCUMULATION = 2


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output-dir", default="profiles")
    parser.add_argument("--steps", type=int, default=12)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        config={
            "train_micro_batch_size_per_gpu": BATCH,
            "gradient_accumulation_steps": ACCUMULATION,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
            "zero_optimization": {"stage": 1},
        },
    )
    data = [torch.randn(BATCH, 64) for _ in range(args.steps * ACCUMULATION)]

    with stepscope.Profiler(
        output_dir=args.output_dir,
        step_unit="optimizer step",
        deepspeed_flops=True,
        wait=3,
        warmup=1,
        active=2,
    ) as profiler:
        follow(engine, profiler)
        for batch in profiler.watch(data):
            loss = engine(batch).square().mean()
            engine.backward(loss)
            engine.step()

    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
