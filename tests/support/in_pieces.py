"""Long series of simulated jobs, judged in several processes and in pieces that can go on.

A file has one line of JSON per job. A benchmark that is interrupted and run again does what is
missing; files of several machines are put together.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

Work = TypeVar("Work")
Outcome = TypeVar("Outcome")


def add_options(parser: argparse.ArgumentParser, jobs: int) -> None:
    """The options of such a benchmark."""
    parser.add_argument("--jobs", type=int, default=jobs)
    parser.add_argument("--seed", type=int, default=0, help="of the first job")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--show", type=int, metavar="SEED", help="one job in full")
    parser.add_argument("--out", type=Path, help="append each job; those in it are not redone")
    parser.add_argument("--together", type=Path, nargs="+", help="files written by --out")


@contextmanager
def own_cache() -> Iterator[None]:
    """The user's cache is left alone, and one process takes one processor."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["STEPSCOPE_CACHE"] = cache
        os.environ["POLARS_MAX_THREADS"] = "1"  # set before Polars is imported
        yield


def at_once(
    judge: Callable[[Work], Outcome], works: Sequence[Work], processes: int = 1
) -> Iterator[Outcome]:
    """Judge jobs, several at once; in no particular order."""
    if processes <= 1:
        yield from map(judge, works)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes) as pool:
        yield from pool.imap_unordered(judge, works)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The jobs in a file; a last line that was cut short is left out."""
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            yield json.loads(line)
        except ValueError:
            continue


def append(outcomes: Iterable[Outcome], path: Path | None) -> list[Outcome]:
    """Write each outcome, a dataclass, as soon as it is known, until all are or Ctrl-C."""
    began, found = time.perf_counter(), []
    with Path(path or os.devnull).open("a", encoding="utf-8") as out:
        if path is not None and path.read_bytes()[-1:] not in (b"", b"\n"):
            out.write("\n")
        try:
            for one in outcomes:
                found.append(one)
                out.write(json.dumps(asdict(one)) + "\n")
                out.flush()
        except KeyboardInterrupt:
            print("interrupted: what was judged so far", file=sys.stderr)
    seconds = time.perf_counter() - began
    print(f"{len(found)} judged now, in {seconds:.0f} s", file=sys.stderr)
    return found
