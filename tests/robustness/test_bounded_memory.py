"""Memory while streaming depends on the size of the blocks, and not of the trace."""

from __future__ import annotations

import sys

import pytest
from tests.support.peak_memory import MadeStream, peak_of_reading
from tests.support.trace_server import Served, serving

pytestmark = [
    pytest.mark.skipif(
        not sys.platform.startswith("linux"), reason="peak memory is read from /proc"
    ),
    pytest.mark.usefixtures("cache"),
]
SMALL_BLOCK, ROWS = 1 << 18, 20_000
MEGABYTE = 1_000_000


@pytest.mark.slow
def test_a_stream_fifteen_times_as_long_takes_no_more_memory() -> None:
    short = peak_of_reading(20_000, SMALL_BLOCK, ROWS)
    long = peak_of_reading(300_000, SMALL_BLOCK, ROWS)  # 100 MB
    assert (short.events, long.events) == (20_000, 300_000)
    assert long.peak_bytes - short.peak_bytes < 50 * MEGABYTE


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_the_size_of_blocks_counts_and_not_that_of_the_trace(packed: bool) -> None:
    peaks = []
    for block_bytes in (SMALL_BLOCK, 4 << 20, 16 << 20):
        reading = peak_of_reading(600_000, block_bytes, ROWS, packed=packed)
        assert reading.events == 600_000
        peaks.append(reading.peak_bytes)
    # How many blocks are on their way between the threads is up to the scheduler: one reading
    # differs from the next by tens of megabytes.
    assert max(peaks[:2]) < peaks[2]
    short = peak_of_reading(20_000, SMALL_BLOCK, ROWS, packed=packed)
    long = peak_of_reading(1_200_000, SMALL_BLOCK, ROWS, packed=packed)  # 400 MB
    assert long.events == 1_200_000
    assert long.peak_bytes - short.peak_bytes < 100 * MEGABYTE


@pytest.mark.slow
def test_two_hundred_megabytes_over_http() -> None:
    pytest.importorskip("aiohttp", reason="reading over HTTP needs aiohttp")
    peaks = []
    for events in (20_000, 600_000):
        with serving(Served(MadeStream(events).read(1 << 30), version=f'"{events}"')) as root:
            reading = peak_of_reading(f"{root}/{events}.json", SMALL_BLOCK, ROWS)
        assert reading.events == events
        peaks.append(reading.peak_bytes)
    assert peaks[1] - peaks[0] < 60 * MEGABYTE
