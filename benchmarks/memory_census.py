"""What a memory census costs: training steps with it against steps without, in one process.

    python benchmarks/memory_census.py [--steps 60]

Every second step has the census, so that a busy machine slows both alike. Two models: one with many
small operators, which is the unfavourable case, and one with larger ones. The figures are ratios of
medians, of wall time and of the training thread's processor time.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from stepscope.capture.record.census import MemoryCensus
from stepscope.run.layout import RankLayout

WARM_UP = 4


@dataclass(frozen=True)
class Shape:
    """A transformer and its batch."""

    name: str
    width: int
    layers: int
    batch: int
    length: int


SHAPES = (
    Shape("small operators", width=64, layers=4, batch=4, length=16),
    Shape("larger operators", width=256, layers=6, batch=8, length=64),
)


def main() -> None:
    """Print a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    print(f"{'':18}{'step':>10}{'wall':>9}{'processor':>11}{'per step':>12}")
    for shape in SHAPES:
        with tempfile.TemporaryDirectory() as folder:
            measure(shape, steps, RankLayout(Path(folder) / "rank00000"))


def measure(shape: Shape, steps: int, layout: RankLayout) -> None:
    """Train in turns with and without the census, and print the ratios."""
    layer = torch.nn.TransformerEncoderLayer(shape.width, 4, 4 * shape.width, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, shape.layers)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(shape.batch, shape.length, shape.width)
    times: dict[bool, list[tuple[int, int]]] = {False: [], True: []}
    is_on = False
    census = MemoryCensus(layout, lambda _: None, lambda: is_on)
    for step in range(steps + WARM_UP):
        is_on = bool(step % 2)
        began, busy = time.perf_counter_ns(), time.thread_time_ns()
        census.step_begins(step)
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        took = time.perf_counter_ns() - began, time.thread_time_ns() - busy
        if step >= WARM_UP:
            times[is_on].append(took)
    census.close()
    size = layout.census.stat().st_size / len(times[True])
    wall, processor = (
        [statistics.median(took[part] for took in times[is_on]) for is_on in (False, True)]
        for part in (0, 1)
    )
    print(
        f"{shape.name:18}{processor[0] / 1e6:7.1f} ms{wall[1] / wall[0]:9.3f}"
        f"{processor[1] / processor[0]:11.3f}{size / 1000:9.1f} kB"
    )


if __name__ == "__main__":
    main()
