"""torchtitan's profiling section in TOML, and its trainer's loop, with one import line changed.

    python examples/torchtitan_style.py [--dump-folder outputs]

The traces are where torchtitan puts them: outputs/profiling/traces/iteration_5/rank0_trace.json
"""

from __future__ import annotations

import argparse
import sys

import torch

# With torchtitan: from torchtitan.tools.profiling import …
from stepscope.adapters.torchtitan import maybe_enable_memory_snapshot, maybe_enable_profiling

SECTION = """
[profiling]
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
    with (
        maybe_enable_profiling(config, base_folder=args.dump_folder) as torch_profiler,
        maybe_enable_memory_snapshot(config, base_folder=args.dump_folder) as memory_profiler,
    ):
        for _ in range(args.steps):
            optimizer.zero_grad()
            model(torch.randn(16, 64)).square().mean().backward()
            optimizer.step()
            if torch_profiler:
                torch_profiler.step()
            if memory_profiler:
                memory_profiler.step()


if __name__ == "__main__":
    main()
