"""torchtune's profiler section with Stepscope's component, and a recipe's loop.

    python examples/torchtune_style.py [--output-dir profiling_outputs]

In a recipe's YAML, change one line:

    profiler:
      _component_: stepscope.adapters.torchtune.setup_torch_profiler
      enabled: True
      output_dir: profiling_outputs
      wait_steps: 2
      warmup_steps: 1
      active_steps: 2
      num_cycles: 1
"""

from __future__ import annotations

import argparse
import importlib

import torch


def instantiate(section):
    """Call the component with the rest of its section, as torchtune.config.instantiate does."""
    arguments = dict(section)
    module, _, name = arguments.pop("_component_").rpartition(".")
    return getattr(importlib.import_module(module), name)(**arguments)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output-dir", default="profiling_outputs")
    parser.add_argument("--steps", type=int, default=8)
    args = parser.parse_args()
    section = {
        "_component_": "stepscope.adapters.torchtune.setup_torch_profiler",
        "enabled": True,
        "output_dir": args.output_dir,
        "with_stack": True,
        "wait_steps": 2,
        "warmup_steps": 1,
        "active_steps": 2,
        "num_cycles": 1,
    }

    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    profiler, section = instantiate(section)
    profiler.start()
    for _ in range(args.steps):
        for _ in range(2):  # gradient accumulation: the optimizer ends the step
            model(torch.randn(16, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        profiler.step()
    profiler.stop()


if __name__ == "__main__":
    main()
