"""What a memory census costs: a training step with it against one without, taken in turns.

python benchmarks/memory_census.py [STEPS]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

from stepscope.capture.record.census import MemoryCensus
from stepscope.run.layout import RankLayout


def main() -> None:
    """Print the ratio of the medians, and the bytes that the census writes per step."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    torch.set_num_threads(1)
    layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 6)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(8, 64, 256)
    times: dict[bool, list[int]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder:
        layout = RankLayout(Path(folder) / "rank00000")
        is_on = False
        census = MemoryCensus(layout, lambda _: None, lambda: is_on)
        for step in range(steps + 4):
            is_on = bool(step % 2)
            census.step_begins(step)
            start = time.perf_counter_ns()
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
            if step >= 4:
                times[is_on].append(time.perf_counter_ns() - start)
        census.close()
        size = layout.census.stat().st_size / (steps / 2)
    ratio = statistics.median(times[True]) / statistics.median(times[False])
    print(f"step with the census / without: {ratio:.3f}; {size / 1000:.1f} kB per step")


if __name__ == "__main__":
    main()
