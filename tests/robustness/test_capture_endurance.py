"""Many windows in one process: nothing may grow."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
from tests.support.runs import manifest_of
from tests.support.training import SmallTraining, batches

import stepscope

CYCLES = 200


def resident_bytes():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_memory_after_200_cycles_is_that_after_ten(tmp_path):
    training = SmallTraining()
    after: dict[int, int] = {}
    with stepscope.Profiler(
        output_dir=tmp_path,
        wait=1,
        warmup=1,
        active=2,
        repeat=0,
        activities="cpu",
        keep_windows=3,
        min_free_bytes=0,
    ) as profiler:
        for number, batch in enumerate(batches(4 * CYCLES), start=1):
            training.step(batch)
            profiler.step()
            if number in (40, 4 * CYCLES):
                gc.collect()
                after[number // 4] = resident_bytes()
    print(f"resident after 10 cycles {after[10] / 1e6:.1f} MB, after {CYCLES} "
          f"{after[CYCLES] / 1e6:.1f} MB")  # fmt: skip
    assert after[CYCLES] <= 1.05 * after[10]
    states = [window.state for window in manifest_of(tmp_path).windows]
    assert states.count("complete") == 3
    assert len(list(tmp_path.rglob("trace.json.gz"))) == 3
