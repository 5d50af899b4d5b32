"""How long the viewer's picture of memory takes on a history of millions of events.

    python benchmarks/viewer_memory.py [--allocations 2500000]

The history is made up: allocations with sizes over many orders of magnitude, each freed after those
made before it, nine categories. A picture has 1,800 columns and 400 allocations, encoded as for the
page, of the whole history and of smaller parts. On a shared machine, the processor time is more
reliable than the time.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.memory.categories.kinds import STACKED
from stepscope.viewer.memory.history import DeviceHistory, encode_columns

COLUMNS = 1800
REPEATS = 9
NS_PER_EVENT = 1000


@dataclass(frozen=True)
class MadeUp:
    """A view of memory, as far as a picture needs it."""

    allocations: pl.DataFrame
    made_up_curve: pl.DataFrame

    def curve(self, device: int) -> pl.DataFrame:  # noqa: ARG002 - there is one
        """The curve of the device."""
        return self.made_up_curve


def made_up(number: int) -> MadeUp:
    """A history of so many allocations."""
    chance = np.random.default_rng(0)
    start = np.sort(chance.permutation(2 * number)[:number])
    is_start = np.zeros(2 * number, np.bool_)
    is_start[start] = True
    end = np.flatnonzero(~is_start)
    size = (chance.pareto(1.0, number) * 32768).astype(np.int64) // 512 * 512 + 512
    is_freed = end > start
    freed = pl.Series(np.where(is_freed, end, -1)).replace(-1, None)
    change = np.zeros(2 * number, np.int64)
    change[start] += size
    change[end[is_freed]] -= size[is_freed]
    held = np.append(np.int64(0), np.cumsum(change))
    allocations = pl.DataFrame(
        {
            "allocation": np.arange(number),
            "device": np.zeros(number, np.int32),
            "size_bytes": size,
            "category": np.array(STACKED)[chance.integers(0, len(STACKED), number)],
            "start_event": start,
            "free_event": freed,
            "end_event": freed,
            "is_given_back_before": np.zeros(number, np.bool_),
        }
    )
    curve = pl.DataFrame(
        {
            "event": np.arange(-1, 2 * number),
            "time_ns": np.arange(2 * number + 1) * NS_PER_EVENT,
            "allocated_bytes": held,
            "reserved_bytes": np.maximum.accumulate(held),
        }
    )
    return MadeUp(allocations, curve)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--allocations", type=int, default=2_500_000)
    number = parser.parse_args().allocations
    history = DeviceHistory(made_up(number), 0, 0)  # type: ignore[arg-type]
    began = time.perf_counter()
    history.columns(by_event=False, start=0, end=1, number=1)
    print(f"{number:,} allocations arranged in {time.perf_counter() - began:.2f} s")
    whole = 2 * number * NS_PER_EVENT
    for share in (1.0, 0.01, 0.0001):
        start = int(whole * 0.4 * (1 - share))
        taken = [picture(history, start, start + int(whole * share)) for _ in range(REPEATS)]
        seconds, processor, size = np.median(np.array(taken), axis=0)
        print(
            f"{share:>8.2%} of the time: {seconds * 1000:7.0f} ms, {processor * 1000:7.0f} ms of "
            f"processor time, {size / 1000:.0f} kB"
        )


def picture(history: DeviceHistory, start: int, end: int) -> tuple[float, float, int]:
    """Seconds, seconds of processor time and bytes of one picture."""
    began, processor = time.perf_counter(), time.process_time()
    data = encode_columns(history.columns(False, start, end, COLUMNS), {})
    return time.perf_counter() - began, time.process_time() - processor, len(data)


if __name__ == "__main__":
    main()
