"""Windows on demand: after a slow step, by a call, or from another shell.

python examples/on_demand.py
stepscope trigger profiles --steps 5     # from another shell, while it runs
"""

from __future__ import annotations

import time

import torch

import stepscope


def main() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64)
    with stepscope.Profiler(
        output_dir="profiles",
        skip_first=1_000_000,  # no scheduled window
        slow_step_factor=5.0,
        slow_step_cooldown=1000,
        active=2,
    ) as profiler:
        for step in range(60):
            model(torch.randn(32, 64)).square().mean().backward()
            time.sleep(0.5 if step == 30 else 0.01)  # one step is far slower than the others
            if step == 45:
                profiler.trigger(steps=1)
            profiler.step()


if __name__ == "__main__":
    main()
