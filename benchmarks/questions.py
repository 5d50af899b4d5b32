"""How long each question of `stepscope show` takes on a trace of about nine million events.

    python benchmarks/questions.py TRACE [--events 9000000] [--hta] [--hta-events 500000]

The trace is enlarged in memory: consecutive copies of a real one, each with its own step numbers,
correlations and identifiers. Loading is measured elsewhere; what is derived once for all questions
(links, nesting, steps) is a separate line.

Prints wall time and processor time (of all threads, including the system's share). On a shared
machine, processor time is more reliable. Each question starts from a trace without cached answers,
as in `stepscope show QUESTION`.

With `--hta`, the same questions are put to Holistic Trace Analysis, if it is installed, on one file
of `--hta-events` events, which is written for both; ratios compare the questions that both answer.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from scaled_trace import write_scaled

from stepscope.analysis.questions import QUESTIONS
from stepscope.trace.arrays.memory_reuse import keep_freed_memory
from stepscope.trace.classify import classify_names
from stepscope.trace.load import load
from stepscope.trace.model import Trace
from stepscope.trace.schema import CATEGORY, EVENTS
from stepscope.trace.tables import Tables

STEP = r"^ProfilerStep\s*#(\d+)$"


def replicate(tables: Tables, events: int) -> Tables:
    """Consecutive copies of a trace, until there are this many events."""
    copies = max(1, -(-events // len(tables.events)))
    first, last = tables.events.select(
        pl.col("start_ns").min(), last=(pl.col("start_ns") + pl.col("dur_ns")).max()
    ).row(0)
    span = last - first + 1_000_000
    numbers = tables.names.select(
        "name_id", step=pl.col("name").str.extract(STEP).cast(pl.Int64)
    ).drop_nulls()
    lowest, highest = numbers.select(lowest=pl.col("step").min(), highest=pl.col("step").max()).row(
        0
    )
    steps = (highest or 0) - (lowest or 0) + 1
    identifiers = 1 + max(
        number or 0
        for number in tables.events.select(pl.col("correlation", "external_id").max()).row(0)
    )
    new_names, parts = [tables.names], list[pl.DataFrame]()
    args, instants, flows = (list[pl.DataFrame]() for _ in range(3))
    known = len(tables.names)
    for copy in range(copies):
        rename = numbers.with_columns(
            new_id=pl.int_range(known, known + len(numbers)).cast(pl.UInt32)
        )
        known += len(numbers)
        new_names.append(
            tables.names.join(rename, on="name_id")
            .with_columns(
                name_id=pl.col("new_id"),
                name="ProfilerStep#" + (pl.col("step") + copy * steps).cast(pl.String),
            )
            .select(tables.names.columns)
        )
        parts.append(
            tables.events.join(
                rename.select("name_id", "new_id"), on="name_id", how="left", maintain_order="left"
            )
            .with_columns(
                name_id=pl.coalesce("new_id", "name_id"),
                event=pl.col("event") + copy * len(tables.events),
                start_ns=pl.col("start_ns") + copy * span,
                correlation=pl.col("correlation") + copy * identifiers,
                external_id=pl.col("external_id") + copy * identifiers,
            )
            .select(pl.col(name).cast(dtype) for name, dtype in EVENTS.items())
        )
        # Texts are shared by all copies.
        args.append(tables.args.with_columns(event=pl.col("event") + copy * len(tables.events)))
        instants.append(tables.instants.with_columns(time_ns=pl.col("time_ns") + copy * span))
        flows.append(tables.flows.with_columns(time_ns=pl.col("time_ns") + copy * span))
    names = pl.concat(new_names).with_columns(pl.col("category").cast(CATEGORY))
    return Tables(
        events=pl.concat(parts),
        args=pl.concat(args, rechunk=False),
        names=classify_names(names).select(tables.names.columns),
        lanes=tables.lanes,
        instants=pl.concat(instants, rechunk=False),
        counters=tables.counters,
        flows=pl.concat(flows),
        metadata=tables.metadata,
        problems=tables.problems,
    )


@dataclass(frozen=True)
class Taken:
    """What an action took, in seconds."""

    wall: float
    processor: float

    def __add__(self, other: Taken) -> Taken:
        return Taken(self.wall + other.wall, self.processor + other.processor)


NOTHING = Taken(0.0, 0.0)


def timed(name: str, action: Callable[[], object]) -> Taken:
    gc.collect()
    start, worked = time.perf_counter(), time.process_time()
    action()
    taken = Taken(time.perf_counter() - start, time.process_time() - worked)
    print(f"  {name:<22}{taken.wall:>8.2f} s{taken.processor:>8.2f} s", flush=True)
    return taken


def heading(text: str) -> None:
    print(f"{text:<24}{'wall':>10}{'processors':>12}")


def rss_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)


def ours(trace: Trace) -> dict[str, Taken]:
    """The time of each question."""
    found = {"(derived once)": timed("(derived once)", lambda: (trace.derived, trace.steps))}
    for question in QUESTIONS:
        if question.over_ranks:
            continue
        # Answers are cached with their trace, so each question gets a trace without any.
        trace.__dict__.pop("_memoized", None)
        found[question.name] = timed(question.name, functools.partial(question.ask, trace))
    return found


def hta(path: Path) -> dict[str, Taken]:
    """The time of the same questions in Holistic Trace Analysis."""
    from hta.trace_analysis import TraceAnalysis

    rank = json.loads(path.read_text()).get("distributedInfo", {}).get("rank", 0)

    opened: list[Any] = []

    def read() -> None:
        opened.append(TraceAnalysis(trace_files={rank: str(path)}, trace_dir=""))

    found = {"(load)": timed("(load)", read)}
    (analysis,) = opened
    asked: dict[str, Callable[[], object]] = {
        "timeline": lambda: analysis.get_temporal_breakdown(visualize=False),
        "idle": lambda: analysis.get_idle_time_breakdown(ranks=[rank], visualize=False),
        "kernels": lambda: analysis.get_gpu_kernel_breakdown(visualize=False),
        "launches": lambda: analysis.get_cuda_kernel_launch_stats(ranks=[rank], visualize=False),
        "launches: queues": lambda: analysis.get_queue_length_summary(ranks=[rank]),
        "timeline: overlap": lambda: analysis.get_comm_comp_overlap(visualize=False),
    }
    for name, action in asked.items():
        taken = timed_if_it_works(name, action)
        if taken is not None:
            found[name] = taken
    return found


def timed_if_it_works(name: str, action: Callable[[], object]) -> Taken | None:
    """A failure of HTA does not stop the other measurements."""
    try:
        return timed(name, action)
    except Exception as error:  # noqa: BLE001
        print(f"  HTA fails at {name}: {type(error).__name__}: {error}")
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--events", type=int, default=9_000_000)
    parser.add_argument("--hta", action="store_true")
    parser.add_argument("--hta-events", type=int, default=500_000)
    options = parser.parse_args()

    keep_freed_memory()  # as the commands do
    source = load(options.trace)
    large = Trace.from_tables(replicate(source.tables(), options.events), str(options.trace))
    del source
    count = large.events.select(pl.len()).collect().item()
    heading(f"{count:,} events")
    taken = ours(large)
    asked = {name: one for name, one in taken.items() if not name.startswith("(")}
    total = sum(asked.values(), NOTHING)
    slowest = max(asked, key=lambda name: asked[name].wall)
    print(
        f"  {'all questions':<22}{total.wall:>8.2f} s{total.processor:>8.2f} s\n"
        f"slowest: {slowest}; peak memory {rss_gib():.1f} GiB"
    )
    if not options.hta:
        return
    del large
    gc.collect()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        write_scaled(path, options.trace, lambda _, events: events >= options.hta_events)
        beside_hta(path)


def beside_hta(path: Path) -> None:
    """The same file, the same process, the same questions."""
    opened: list[Trace] = []

    def read() -> None:
        opened.append(load(path, store=False))

    heading(f"ours, {path.stat().st_size / 1e6:.0f} MB")
    loading = timed("(load)", read)
    here = ours(opened[0])
    loading += here["(derived once)"]
    heading("HTA, the same file")
    there = hta(path)
    rows = [("load", loading, there["(load)"])]
    for name in here:
        found = [taken for key, taken in there.items() if key.partition(":")[0] == name]
        if found:
            rows.append((name, here[name], sum(found, NOTHING)))
    for label, chosen in (("all of these", rows[1:]), ("with loading", list(rows))):
        our_sum = sum((our for _, our, _ in chosen), NOTHING)
        rows.append((label, our_sum, sum((their for _, _, their in chosen), NOTHING)))
    print(f"{'processor time':<20}{'ours':>10}{'HTA':>10}{'ratio':>8}{'by wall':>9}")
    for label, our, their in rows:
        print(
            f"{label:<20}{our.processor:>9.2f}s{their.processor:>9.2f}s"
            f"{their.processor / our.processor:>7.1f}x{their.wall / our.wall:>8.1f}x"
        )


if __name__ == "__main__":
    main()
