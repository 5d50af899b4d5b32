"""A custom file for each window, written in a separate process when the window is finished.

python examples/custom_artifact.py
cat profiles/*/rank00000/window-0000/slowest_step.json
"""

from __future__ import annotations

import json

import torch

import stepscope
from stepscope.artifacts.custom import FinishedWindow


def slowest_step(window: FinishedWindow) -> None:
    """Writes which of the recorded steps took longest; it could also read the window's trace."""
    slowest = max(window.steps, key=lambda step: step.dur_ns)
    text = json.dumps({"step": slowest.step, "dur_ns": slowest.dur_ns})
    (window.directory / "slowest_step.json").write_text(text)


def main() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(128, 128)
    with stepscope.Profiler(output_dir="profiles", artifacts=slowest_step) as profiler:
        for _ in range(12):
            model(torch.randn(64, 128)).square().mean().backward()
            profiler.step()


if __name__ == "__main__":
    main()
