"""Read a run's tables in Python, without torch or a GPU.

python examples/read_a_run.py profiles
"""

from __future__ import annotations

import sys

import polars as pl

import stepscope


def main() -> None:
    run = stepscope.open_run(sys.argv[1] if len(sys.argv) > 1 else "profiles")
    for rank in run.ranks:
        steps = [step.dur_ns / 1e6 for step in rank.steps]
        print(f"rank {rank.rank}: {len(steps)} steps, the longest {max(steps):.2f} ms")
        for window in rank.windows:
            if window.trace_path is None:
                continue
            trace = stepscope.load(window.trace_path)
            print(f"  {window.trace_path.parent.name}: steps {trace.steps['step'].to_list()}")
            print(
                trace.events.join(trace.names.select("name_id", "name"), on="name_id")
                .filter(pl.col("category") == "cpu_op")
                .group_by("name")
                .agg(pl.len().alias("count"), (pl.col("dur_ns").sum() / 1e6).alias("total_ms"))
                .sort("total_ms", descending=True)
                .head(5)
                .collect()
            )


if __name__ == "__main__":
    main()
