"""torchtitan's profiling section in TOML, and its trainer's loop.

    python examples/torchtitan_style.py [--dump-folder outputs]

The traces are where torchtitan puts them: outputs/profiling/traces/iteration_5/rank0_trace.json.gz
"""

from __future__ import annotations

import argparse
import sys

import torch

# With torchtitan, `take_over()` makes `config.profiler.build(…)` build this one.
from stepscope.adapters.torchtitan import Profiler

SECTION = """
[profiler]
enable_profiling = true
save_traces_folder = "profiling/traces"
profile_freq = 5
profiler_warmup = 1
profiler_active = 1
enable_memory_snapshot = false
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dump-folder", default="outputs")
    parser.add_argument("--steps", type=int, default=11)
    args = parser.parse_args()
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    config = tomllib.loads(SECTION)

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.SiLU(), torch.nn.Linear(128, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with Profiler(config["profiler"], base_folder=args.dump_folder) as profiler:
        for _ in range(args.steps):
            optimizer.zero_grad()
            model(torch.randn(16, 64)).square().mean().backward()
            optimizer.step()
            profiler.step()


if __name__ == "__main__":
    main()
