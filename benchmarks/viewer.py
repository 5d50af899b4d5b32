"""How long the viewer's tiles, searches and totals take on a trace of about ten million events.

    python benchmarks/viewer.py TRACE [--events 10000000] [--tiles 300] [--browser]

The trace is enlarged in memory: consecutive copies of a real one, each with its own step numbers,
correlations and identifiers, without arguments, which nothing here reads. Tiles are those of a page
of 1,500 by 800 pixels (three windows wide, 45 rows), at random places of every zoom level from the
whole trace to a microsecond, encoded as for the page. No tile is cached. On a shared machine, the
processor time of a tile is more reliable than its time.

With `--browser`, a headless Chromium with software rendering draws the same trace: the first
picture after the trace is read, and frames while it zooms and pans (`viewer_frames.py`).
"""

from __future__ import annotations

import argparse
import functools
import random
import resource
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import polars as pl

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from questions import replicate
from viewer_frames import HEIGHT, SETTLED, print_frames
from viewer_frames import WIDTH as PAGE_WIDTH

from stepscope.analysis.counters import counters_of
from stepscope.analysis.host.idle_gaps import idle_segments
from stepscope.trace.derive.columns import needed_args
from stepscope.trace.load import load
from stepscope.trace.model import Trace
from stepscope.viewer.encoding import encode_slices
from stepscope.viewer.events import event_in_full, links_of
from stepscope.viewer.flame import FlameBy, Forest, flame
from stepscope.viewer.index import TraceIndex, arrange, whole_index
from stepscope.viewer.ranges import range_basis, range_totals
from stepscope.viewer.search import NameIndex, search
from stepscope.viewer.tiles import slice_tile, warm_up

WIDTH, ROWS = 1500, 45
Found = TypeVar("Found")


def timed(work: Callable[[], Found]) -> tuple[float, Found]:
    """Seconds that some work takes, and what it gives."""
    began = time.perf_counter()
    found = work()
    return time.perf_counter() - began, found


def timed_tile(work: Callable[[], Found]) -> tuple[float, float, Found]:
    """Seconds and seconds of processor time of work in this thread, and what it gives."""
    processor = time.thread_time()
    seconds, found = timed(work)
    return seconds, time.thread_time() - processor, found


def spread(title: str, seconds: list[float]) -> None:
    """Print the median, the 99th percentile and the slowest."""
    ms = np.array(seconds) * 1000
    print(f"{title:<44}{np.median(ms):>9.2f} ms{np.percentile(ms, 99):>9.2f} ms{ms.max():>9.2f} ms")


def line(title: str, seconds: float, more: str = "") -> None:
    """Print one figure."""
    print(f"{title:<44}{seconds * 1000:>9.1f} ms  {more}")


def peak_gb() -> float:
    """The largest resident set of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def tiles(index: TraceIndex, number: int) -> None:
    """Tiles at random places of every level."""
    chance = random.Random(1)
    lowest, highest = 0, max(1, int(np.log2(index.end_ns / WIDTH)) + 1)
    rows = len(index.events)
    names = ("whole trace", "in between", "closest")
    by_level: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    sizes = []
    for _ in range(number):
        level = chance.randint(lowest, highest)
        span = WIDTH << level
        start = chance.randint(0, max(1, index.end_ns - span))
        first = chance.randint(0, max(0, rows - ROWS))
        wanted = range(first, min(rows, first + ROWS))

        def make(start: int = start, level: int = level, wanted: range = wanted) -> bytes:
            return encode_slices(slice_tile(index.events, start, level, 3 * WIDTH, wanted))

        seconds, processor, data = timed_tile(make)
        sizes.append(len(data))
        third = (level - lowest) / max(1, highest - lowest)
        place = "closest" if third < 1 / 3 else "in between" if third < 2 / 3 else "whole trace"
        by_level[place].append((seconds, processor))
    print(f"{'':<44}{'p50':>12}{'p99':>12}{'slowest':>12}")
    every = [one for part in by_level.values() for one in part]
    for title, part in [("all levels", every), *by_level.items()]:
        spread(f"tiles, {title}", [seconds for seconds, _ in part])
        spread("  processor time", [processor for _, processor in part])
    whole = [
        timed_tile(lambda: slice_tile(index.events, 0, highest, WIDTH, range(rows)))[1]
        for _ in range(20)
    ]
    spread(f"tile of the whole trace, all {rows} rows, processor", whole)
    most = f"at most {max(sizes) / 1e3:.0f} kB"
    print(f"{'size of a tile':<44}{np.median(sizes) / 1e3:>9.0f} kB  {most}")


def questions(trace: Trace, index: TraceIndex) -> None:
    """Search, details, totals, flame graphs, counters."""
    names = NameIndex.of(index)
    for text in ("gemm", "a", "nothing like this"):
        seconds, hits = timed(functools.partial(search, index, names, text))
        line(f"search for '{text}'", seconds, f"{hits['total']:,} hits")
    seconds, links = timed(lambda: links_of(trace))
    line("links, once", seconds)
    middle = index.event_count // 2
    line("details of an event", timed(lambda: event_in_full(trace, index, links, middle))[0])
    seconds, idle = timed(lambda: idle_segments(trace))
    line("idle causes, once", seconds)
    seconds, found = timed(lambda: counters_of(trace, index.origin_ns, None))
    line("counters, once", seconds, f"{len(found)} series")
    seconds, forest = timed(lambda: Forest.of(trace))
    line("call trees, once", seconds)
    seconds, basis = timed(lambda: range_basis(trace, idle))
    line("what ranges are measured on, once", seconds)
    step = trace.device_steps.row(len(trace.device_steps) // 2, named=True)
    for title, start, end in (
        ("one step", step["start_ns"], step["end_ns"]),
        ("the whole trace", index.origin_ns, index.origin_ns + index.end_ns),
    ):
        seconds, _ = timed(functools.partial(range_totals, basis, forest, start, end))
        line(f"totals of {title}", seconds)
        for by in (FlameBy.HOST, FlameBy.OPERATOR):
            seconds, _ = timed(functools.partial(flame, trace, forest, start, end, by))
            line(f"flame graph of {title}, {by.value}", seconds)


def browser(trace: Trace, index: TraceIndex) -> None:
    """Draw it in Chromium."""
    from tests.support.browser import browsing

    from stepscope.viewer.app import ViewerServer, link_of, listen, make_app
    from stepscope.viewer.library import Library
    from stepscope.viewer.opened import Content, Origin
    from stepscope.viewer.security import Secrets

    library = Library([Origin("benchmark", "benchmark", ("benchmark",))])
    one = library.traces[0]
    one._content = Content(trace, index, True, one.origin, None)
    one.stage = "ready"
    one.is_over.set()
    listening, keys = listen(), Secrets()
    listening.listen(128)
    server = ViewerServer(make_app(library, keys))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    import tempfile

    with (
        tempfile.TemporaryDirectory() as folder,
        browsing(Path(folder), PAGE_WIDTH, HEIGHT) as new_page,
    ):
        page = new_page()
        began = time.perf_counter()
        page.page.goto(f"{link_of(listening, keys)}#from=0&to={index.end_ns}")
        page.until(SETTLED)
        line("browser: first picture", time.perf_counter() - began)
        print_frames(page)
    server.should_exit = True
    thread.join(timeout=30)


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("trace")
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--tiles", type=int, default=300)
    parser.add_argument("--browser", action="store_true")
    options = parser.parse_args()
    tables = load(options.trace).tables()
    needed = tables.args.with_columns(pl.when(needed_args()).then("args").alias("args"))
    tables = replicate(replace(tables, args=needed), options.events)
    trace = Trace.from_tables(tables, "benchmark")
    del tables
    line("deriving", timed(lambda: trace.derived)[0])
    before = peak_gb()
    warm_up()
    processor = time.process_time()
    seconds, index = timed(lambda: whole_index(trace, arrange(trace)))
    processor = time.process_time() - processor
    line("arranging", seconds, f"{index.event_count:,} events in {len(index.events)} rows")
    line("  processor time, of all threads", processor)
    held = (sum(one.nbytes for one in vars(index.events).values()) + index.place.nbytes) / 1e6
    print(f"{'memory of the rows':<44}{held:>9.0f} MB  (peak {before:.1f} → {peak_gb():.1f} GB)")
    if options.browser:
        browser(trace, index)
    # Requests are answered in threads; in the main one, long calls begin one of their own.
    with ThreadPoolExecutor(max_workers=1) as answering:
        answering.submit(tiles, index, options.tiles).result()
        answering.submit(questions, trace, index).result()
    print(f"{'peak memory':<44}{peak_gb():>9.1f} GB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
