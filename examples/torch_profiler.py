"""Code written for torch.profiler, with one import line changed; it also writes a run directory.

python examples/torch_profiler.py
stepscope report profiles
"""

from __future__ import annotations

import torch

# Before: from torch.profiler import ...
from stepscope.adapters.torch_profiler import ProfilerActivity, profile, record_function, schedule


def main() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=3, repeat=1),
        on_trace_ready=lambda prof: prof.export_chrome_trace("trace.json"),
        record_shapes=True,
    ) as prof:
        for _ in range(8):
            with record_function("forward_pass"):
                loss = model(torch.randn(32, 64)).square().mean()
            with record_function("backward_pass"):
                loss.backward()
            with record_function("optimizer_step"):
                optimizer.step()
                optimizer.zero_grad()
            prof.step()
    print(prof.key_averages().table(sort_by="self_cpu_time_total", row_limit=10))


if __name__ == "__main__":
    main()
