"""What comparing many ranks takes: reading their traces, judging them, and the memory for it.

    python benchmarks/fleet.py [--ranks 8 64 512 1024] [--jobs 8 64 512 1024] [--engines 64]

Three tables:

* From files to the answer of `stepscope show stragglers`, by number of ranks: time to read the
  traces with the local engine, time to judge them, peak memory of the process that judges, and the
  bytes that a rank's part takes per step.
* Judging alone, of synthetic jobs with pipeline, data, context, expert and tensor groups.
* The same traces read by this process, by local processes and by a Dask cluster on this machine, in
  one run.

Each size runs in a process of its own, so that peaks of memory are its own. Traces are synthetic: a
rank has a few steps with a few kernels and collectives, so the figures show what grows with ranks.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

STEPS = 4
COLLECTIVES = 6


def write_job(folder: Path, ranks: int) -> None:
    """Traces of a job of which one rank waits longer for its input."""
    from tests.support.gpu_trace import GpuTrace, ms

    late = ranks // 3
    for rank in range(ranks):
        t = GpuTrace(rank=rank, world_size=ranks, device=0)
        for _ in range(STEPS):
            with t.step(dur_ns=ms(120)):
                t.data_wait(ms(22 if rank == late else 2))
                for number in range(COLLECTIVES):
                    t.op("aten::mm").launch("ampere_sgemm_128x64_nn", ms(5))
                    t.sync()
                    waits = ms(20) if number == 0 and rank != late else 0
                    t.collective("all_reduce", 1 << 20, ms(1) + waits)
                    t.sync()
        document = json.loads(t.json())
        # A recorder writes a group's ranks in short where there are many.
        text = json.dumps(document).replace(json.dumps(json.dumps(list(range(ranks))))[1:-1], "all")
        (folder / f"rank{rank}.json").write_text(text)


def from_files(ranks: int, workers: int) -> dict[str, Any]:
    """Reads and judges a job of this size."""
    from stepscope.fleet.engines.local import LocalEngine
    from stepscope.fleet.job import read_job
    from stepscope.fleet.stragglers import stragglers_of_job
    from stepscope.trace.paths import resolve_traces

    with tempfile.TemporaryDirectory() as folder:
        write_job(Path(folder), ranks)
        traces = resolve_traces((folder,))
        begun = time.perf_counter()
        job = read_job(traces, engine=LocalEngine(workers))
        read = time.perf_counter()
        found = stragglers_of_job(job)
        judged = time.perf_counter()
    size = sum(len(pickle.dumps(part)) for part in job.parts)
    return {
        "ranks": ranks,
        "read_s": read - begun,
        "judge_s": judged - read,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "bytes": size / ranks / STEPS,
        "right": found.straggler == ranks // 3 and found.causes["cause"][0] == "input",
    }


def judged_only(ranks: int, workers: int) -> dict[str, Any]:
    """Judges a synthetic job of this size, without files."""
    del workers
    from tests.support.fleet_jobs import grid_of, random_problem, simulate

    from stepscope.fleet.blame.report import find_blame
    from stepscope.fleet.clocks.ranks import solve_rank_clocks
    from stepscope.fleet.matched import match

    grid = grid_of(ranks)
    find_blame(match(*_tables(simulate(grid_of(8), 0))))  # compiles the loops
    problem = random_problem(grid, 1)
    arrivals, groups = _tables(simulate(grid, 1, problem))
    begun = time.perf_counter()
    matched = match(arrivals, groups)
    blame = find_blame(matched)
    blamed = time.perf_counter()
    solve_rank_clocks(matched)
    solved = time.perf_counter()
    first = blame.causes.row(0, named=True)
    return {
        "ranks": ranks,
        "arrivals": len(arrivals),
        "blame_s": blamed - begun,
        "clocks_s": solved - blamed,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "right": (first["rank"], first["cause"]) == (problem.rank, problem.kind),
    }


def _tables(job: Any) -> tuple[Any, Any]:
    return job.arrivals, job.groups


def engines(ranks: int, workers: int) -> dict[str, Any]:
    """Reads one job with each engine."""
    from stepscope.fleet.engines.dask import DaskEngine
    from stepscope.fleet.engines.local import LocalEngine
    from stepscope.fleet.job import read_job
    from stepscope.trace.paths import resolve_traces

    chosen: dict[str, Any] = {"here": LocalEngine(1), "local": LocalEngine(workers)}
    if importlib.util.find_spec("distributed") is not None:
        chosen["dask"] = DaskEngine(workers=workers)
    times: dict[str, Any] = {"ranks": ranks}
    with tempfile.TemporaryDirectory() as folder:
        write_job(Path(folder), ranks)
        traces = resolve_traces((folder,))
        jobs = []
        for name, engine in chosen.items():
            begun = time.perf_counter()
            jobs.append(read_job(traces, engine=engine))
            times[f"{name}_s"] = time.perf_counter() - begun
    times["right"] = all(job == jobs[0] for job in jobs)
    return times


_TABLES = {"from_files": from_files, "judged_only": judged_only, "engines": engines}


def _apart(table: str, ranks: int, workers: int) -> dict[str, Any]:
    """A row of a table, from a process of its own."""
    words = [sys.executable, __file__, "--row", table, "--ranks", str(ranks)]
    paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [*words, "--workers", str(workers)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _print(title: str, rows: Iterable[dict[str, Any]]) -> None:
    """Prints each row as soon as it is there."""
    print(f"\n{title}")
    for number, row in enumerate(rows):
        if number == 0:
            print("  ".join(f"{name:>9}" for name in row))
        cells = [f"{one:.2f}" if isinstance(one, float) else str(one) for one in row.values()]
        print("  ".join(f"{cell:>9}" for cell in cells), flush=True)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="*", default=[8, 64, 512, 1024])
    parser.add_argument("--jobs", type=int, nargs="*", default=[8, 64, 512, 1024])
    parser.add_argument("--engines", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--row", choices=list(_TABLES), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.row:
        print(json.dumps(_TABLES[asked.row](asked.ranks[0], asked.workers)))
        return
    _print(
        "From files to the answer", (_apart("from_files", n, asked.workers) for n in asked.ranks)
    )
    _print("Judging alone", (_apart("judged_only", n, asked.workers) for n in asked.jobs))
    _print("Engines", [_apart("engines", asked.engines, asked.workers)])


if __name__ == "__main__":
    main()
