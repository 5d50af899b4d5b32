"""What comparing many ranks takes: reading their traces, judging them, and the memory for it.

    python benchmarks/fleet.py [--commands 8 64 512 1024] [--jobs 8 64 512 1024] [--engines 64]
    python benchmarks/fleet.py --seeds 200

Three tables, and a fourth with `--seeds`:

* `stepscope show stragglers` and `stepscope report` on a directory of traces, by number of ranks:
  elapsed time, time of the processors in the command's own process and in its workers, and peak
  memory of the command's own process, and of all of them together (`and_workers`: five times a
  second, pages that they share counted once). `right`: the planted rank and cause come first.
* Judging alone, of synthetic jobs with pipeline, data, context, expert and tensor groups.
* The same traces read by this process, by local processes and by a Dask cluster on this machine, in
  one run, and the bytes that a rank's part takes per step.
* `--seeds N`, alone: N synthetic jobs of 1,024 ranks, each with a random problem in a random rank,
  and with clocks off by up to 50 ms and drifting by up to 50 ppm. Per cause, in how many jobs the
  right rank and the right cause came first, and for how many clocks the stated error bound held:
  sixteen random ranks of each job, at the beginning and the end of the recording.

Each size runs in a process of its own, so that peaks of memory are its own. Traces are synthetic: a
rank has a few steps with a few kernels and collectives, so the figures show what grows with ranks.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import pickle
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

STEPS = 4
COLLECTIVES = 6


def write_job(folder: Path, ranks: int) -> None:
    """Traces of a job of which one rank waits longer for its input.

    Each rank's clock is off by up to 50 ms and drifts by up to 50 ppm.
    """
    from tests.support.gpu_trace import GpuTrace, ms

    dice = random.Random(ranks)
    late = straggler_of(ranks)
    for rank in range(ranks):
        t = GpuTrace(rank=rank, world_size=ranks, device=0)
        for _ in range(STEPS):
            with t.step():
                t.data_wait(ms(22 if rank == late else 2))
                for number in range(COLLECTIVES):
                    t.op("aten::mm").launch("ampere_sgemm_128x64_nn", ms(5))
                    waits = ms(20) if number == 0 and rank != late else 0
                    t.wait_collective(t.collective("all_reduce", 1 << 20, ms(1) + waits))
                t.sync()
        document = t.document()
        offset_us, rate = dice.uniform(-50e3, 50e3), 1 + dice.uniform(-50e-6, 50e-6)
        for event in document["traceEvents"]:
            if event["ph"] != "M":
                end = event["ts"] + event.get("dur", 0)
                event["ts"] = round(event["ts"] * rate + offset_us, 3)
                if "dur" in event:
                    event["dur"] = round(end * rate + offset_us - event["ts"], 3)
        # A recorder writes a group's ranks in short where there are many.
        text = json.dumps(document).replace(json.dumps(json.dumps(list(range(ranks))))[1:-1], "all")
        (folder / f"rank{rank}.json").write_text(text)


def straggler_of(ranks: int) -> int:
    """The rank that waits longer."""
    return ranks // 3


def commands(ranks: int, workers: int) -> dict[str, Any]:
    """Runs the commands that a person runs on the traces of a job of this size."""
    row: dict[str, Any] = {"ranks": ranks}
    with tempfile.TemporaryDirectory() as folder:
        traces = Path(folder) / "traces"
        traces.mkdir()
        write_job(traces, ranks)
        row["traces_mib"] = sum(path.stat().st_size for path in traces.iterdir()) / 2**20
        words = ["show", "stragglers", str(traces), "--workers", str(workers), "--format", "json"]
        shown = _command(row, "show", words)
        first = shown["ranks"][0]
        row["show_right"] = (first["rank"], first["cause"]) == (straggler_of(ranks), "input")
        report = _command(row, "report", ["report", str(traces), "--format", "json"])
        first = report["findings"][0]
        blamed = first["id"], first["rank"], report["between_ranks"]["straggler"]
        row["report_right"] = blamed == ("input-bound", straggler_of(ranks), straggler_of(ranks))
    return row


_COMMAND = """
import resource, sys
from stepscope.commands.main import main
code = main(sys.argv[1:])
own, workers = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
with open("/proc/self/status", encoding="ascii") as status:
    # Not getrusage: its peak begins with that of the process that started this one.
    peak_kib = next(line.split()[1] for line in status if line.startswith("VmHWM"))
print(*(sum(usage[:2]) for usage in (own, workers)), peak_kib, file=sys.stderr)
sys.exit(code)
"""


def _command(row: dict[str, Any], name: str, words: list[str]) -> dict[str, Any]:
    """Runs a command and notes its time, that of the processors, and peaks of memory."""
    begun = time.perf_counter()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as noise:
        process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND, *words], stdout=out, stderr=noise
        )
        together = 0
        while process.poll() is None:
            together = max(together, _memory_of_all(process.pid))
            time.sleep(0.2)
        row[f"{name}_s"] = time.perf_counter() - begun
        out.seek(0)
        noise.seek(0)
        said = noise.read()
        if process.returncode:
            raise SystemExit(said)
        answer: dict[str, Any] = json.load(out)
    own, workers, peak_kib = map(float, said.splitlines()[-1].split())
    row |= {f"{name}_own_cpu_s": own, f"{name}_workers_cpu_s": workers}
    row |= {f"{name}_mib": peak_kib / 1024, f"{name}_and_workers_mib": together / 2**20}
    return answer


def _memory_of_all(pid: int) -> int:
    """The memory of a process and its workers, each page that they share counted once."""
    total = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        whole = psutil.Process(pid)
        for one in (whole, *whole.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                total += one.memory_full_info().pss
    return total


def judged_only(ranks: int, workers: int) -> dict[str, Any]:
    """Judges a synthetic job of this size, without files."""
    del workers
    from tests.support.fleet_jobs import grid_of, random_problem, simulate

    from stepscope.analysis.blame.matched import match
    from stepscope.analysis.blame.report import find_blame
    from stepscope.analysis.ranks.clocks import solve_rank_clocks

    grid = grid_of(ranks)
    find_blame(match(*_tables(simulate(grid_of(8), 0))))  # compiles the loops
    problem = random_problem(grid, 1)
    job = simulate(grid, 1, problem)
    arrivals, groups = _tables(job)
    met = job.met
    begun = time.perf_counter()
    matched = match(arrivals, groups)
    blame = find_blame(matched)
    blamed = time.perf_counter()
    solve_rank_clocks(met)
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
    times["bytes"] = sum(len(pickle.dumps(part)) for part in jobs[0].parts) / ranks / STEPS
    times["right"] = all(job == jobs[0] for job in jobs)
    return times


def seeds(jobs: int, ranks: int = 1024) -> list[dict[str, Any]]:
    """Judges synthetic jobs, one for each seed; a row per cause, then one for all."""
    from tests.support.fleet_jobs import PROBLEMS, grid_of, random_problem, simulate

    from stepscope.analysis.blame.matched import match
    from stepscope.analysis.blame.report import find_blame
    from stepscope.analysis.ranks.clocks import solve_rank_clocks

    grid = grid_of(ranks)
    names = ("jobs", "right", "clocks", "bound_held")
    found = {kind: dict.fromkeys(names, 0) for kind in (*PROBLEMS, "all")}
    begun = time.process_time()
    for seed in range(jobs):
        problem = random_problem(grid, seed)
        job = simulate(grid, seed, problem)
        matched = match(job.arrivals, job.groups)
        first = find_blame(matched).causes.row(0, named=True)
        held = _held(job, solve_rank_clocks(job.met), random.Random(seed))
        is_right = (first["rank"], first["cause"]) == (problem.rank, problem.kind)
        for kind in (problem.kind, "all"):
            row = found[kind]
            row["jobs"] += 1
            row["right"] += is_right
            row["clocks"] += len(held)
            row["bound_held"] += sum(held)
        if not is_right or seed % 20 == 19:
            took = time.process_time() - begun
            print(f"{seed + 1} jobs, {found['all']['right']} right, {took:.0f} s", file=sys.stderr)
    return [{"cause": f"{kind:<18}", **row} for kind, row in found.items()]


def _held(job: Any, clocks: Any, dice: random.Random) -> list[bool]:
    """Of some ranks, whether the bound of their clock's error held, first and last."""
    import polars as pl

    ends = job.arrivals.with_columns(true=pl.Series(job.true_end_ns)).sort("true")
    held = []
    for rank in dice.sample(range(1, job.grid.ranks), 16):
        own = ends.filter(pl.col("rank") == rank)
        bound = clocks.ranks.filter(pl.col("rank") == rank)["error_ns"][0]
        for row in (own.row(0, named=True), own.row(-1, named=True)):
            own_clock = clocks.ranks.filter(pl.col("rank") == rank)
            read = own_clock.with_columns(read=pl.lit(row["end_ns"]))
            said = row["end_ns"] - read.select(clocks.corrected("read")).item()
            held.append(bool(job.clock_error_ns(rank, 0, row["true"], said) <= bound))
    return held


_TABLES = {"commands": commands, "judged_only": judged_only, "engines": engines}


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
    parser.add_argument("--commands", type=int, nargs="*", default=[8, 64, 512, 1024])
    parser.add_argument("--jobs", type=int, nargs="*", default=[8, 64, 512, 1024])
    parser.add_argument("--engines", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seeds", type=int, metavar="N", help="only judge N synthetic jobs")
    parser.add_argument("--row", choices=list(_TABLES), help=argparse.SUPPRESS)
    parser.add_argument("--ranks", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.row:
        print(json.dumps(_TABLES[asked.row](asked.ranks, asked.workers)))
        return
    if asked.seeds:
        _print("Seeds", seeds(asked.seeds))
        return
    _print("Commands", (_apart("commands", n, asked.workers) for n in asked.commands))
    _print("Judging alone", (_apart("judged_only", n, asked.workers) for n in asked.jobs))
    _print("Engines", [_apart("engines", asked.engines, asked.workers)])


if __name__ == "__main__":
    main()
