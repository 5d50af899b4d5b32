"""How long a person waits for `stepscope report`, first and again, beside other tools.

    python benchmarks/verdict.py TRACE                                # 250 MB from a real trace
    python benchmarks/verdict.py TRACE --size 1000 --size 2700 --peers-up-to 0
    python benchmarks/verdict.py TRACE --before CHECKOUT    # another version, in turns

TRACE is a real Chrome trace (.json or .json.gz), which is enlarged to `--size` MB in a temporary
folder: consecutive copies with their own times, links and steps. Every run is a separate process.
The first one makes the store ("cold"), the next finds it and what is kept in it ("warm"). Byte code
and compiled loops, which a machine makes once, are there already: one report comes before. Where
they are installed, HTA, TraceLens and trace_processor answer comparable questions on the same file:
what the GPU did, in seconds, is printed for each below the times. HTA and TraceLens belong into the
environment of this Python, trace_processor on PATH. The package `tracelens` of the index is another
program; TraceLens is installed from its repository.

Processor time counts all threads, the system's share and the start of the interpreter. On a shared
machine it is more reliable than time. Of `--repeat` runs, the one with the least of it counts. Peak
memory is the process's largest resident set.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from scaled_trace import write_scaled

HERE = Path(__file__).resolve().parents[1]
SOURCE = HERE / "src"
ONCE = "machine-code"
"""What of the cache a machine makes once: the compiled loops."""
STAGES = ("start", "load", "summarise", "findings", "render")
ANSWERS = ("compute", "communication", "copies", "idle", "work")
TRACE_PROCESSOR_QUERY = (
    "select sum(dur) / 1e9 as work from slice where category in"
    " ('kernel', 'gpu_memcpy', 'gpu_memset')"
)


def report(path: Path) -> dict[str, float]:
    """`stepscope report`, with the processor time of each stage in seconds.

    Polars reads lazily: what a stage is the first to ask for counts as its own.
    """
    sys.path.insert(0, str(SOURCE))
    from stepscope.trace.arrays.memory_reuse import keep_freed_memory

    keep_freed_memory()  # before numpy is imported, as the command does
    from stepscope.advice import diagnosis
    from stepscope.advice.rank import diagnose_rank, diagnose_window
    from stepscope.commands import report as command
    from stepscope.commands.main import main
    from stepscope.report.outputs import Output

    del diagnosis, command  # imported, as the command does, before anything is timed
    spent = dict.fromkeys(STAGES, 0.0)
    spent["start"] = time.process_time()

    def count(stage: str, place: object, name: str) -> None:
        """Add up the time of a function, by replacing it where it is called from."""
        function: Callable[..., object] = getattr(place, name)

        @functools.wraps(function)
        def wrapper(*args: object, **more: object) -> object:
            began = time.process_time()
            try:
                return function(*args, **more)
            finally:
                spent[stage] += time.process_time() - began

        setattr(place, name, wrapper)

    count("load", diagnose_rank, "load")
    count("findings", diagnose_window, "with_findings")
    count("render", Output, "write")
    sys.stdout = sys.stderr
    if main(["report", str(path)]):
        raise SystemExit("stepscope report failed")
    spent["summarise"] = time.process_time() - sum(spent.values())
    return spent


def timelines(path: Path) -> dict[str, float]:
    """What the GPU did: in the whole file, and without the last step, as HTA answers."""
    sys.path.insert(0, str(SOURCE))
    from stepscope import load
    from stepscope.analysis.selection.scope import Scope
    from stepscope.analysis.timeline import timeline

    trace = load(path)
    whole = timeline(trace)
    in_steps = timeline(trace, Scope(steps=whole.scope.steps[:-1]))
    return {
        "compute": whole.compute_ns / 1e9,
        "communication": whole.total_comm_ns / 1e9,
        "copies": whole.total_memcpy_ns / 1e9,
        "idle": whole.idle_ns / 1e9,
        "work": int(whole.devices["work_ns"].sum()) / 1e9,
        "compute, without the last step": in_steps.compute_ns / 1e9,
        "communication, without the last step": in_steps.total_comm_ns / 1e9,
        "copies, without the last step": in_steps.total_memcpy_ns / 1e9,
        "idle, without the last step": in_steps.idle_ns / 1e9,
    }


def hta(path: Path) -> dict[str, float]:
    """What HTA's guide asks of one rank: times, kernels, idle time, overlap."""
    from hta.trace_analysis import TraceAnalysis

    analysis = TraceAnalysis(trace_files={0: str(path)}, trace_dir="")
    times = analysis.get_temporal_breakdown(visualize=False)
    types, _ = analysis.get_gpu_kernel_breakdown(visualize=False)
    analysis.get_idle_time_breakdown(ranks=[0], visualize=False)
    analysis.get_comm_comp_overlap(visualize=False)
    by_type = dict(zip(types["kernel_type"], types["sum"] / 1e6, strict=True))
    return {
        "compute": by_type.get("COMPUTATION", 0.0),
        "communication": by_type.get("COMMUNICATION", 0.0),
        "copies": by_type.get("MEMORY", 0.0),
        "idle": float(times["idle_time(us)"].sum()) / 1e6,
    }


def tracelens(path: Path) -> dict[str, float]:
    """What TraceLens's guide asks of one rank: the GPU's timeline, and kernels by operator."""
    from TraceLens import TreePerfAnalyzer

    analyzer = TreePerfAnalyzer.from_file(str(path))
    found = analyzer.get_df_gpu_timeline()
    analyzer.get_df_kernel_launchers()
    by_type = dict(zip(found["type"], found["time ms"] / 1e3, strict=True))
    names = {
        "compute": "computation_time",
        "communication": "total_comm_time",
        "copies": "total_memcpy_time",
        "idle": "idle_time",
    }
    return {answer: float(by_type[name]) for answer, name in names.items() if name in by_type}


CHILDREN = {"report": report, "timelines": timelines, "HTA": hta, "TraceLens": tracelens}
MODULES = {"HTA": "hta", "TraceLens": "TraceLens"}


def run(command: list[str]) -> dict[str, float] | None:
    """Time, processor time and peak memory of a process, and what it prints; None if it fails."""
    with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as errors:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=printed, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - began
        errors.seek(0)
        printed.seek(0)
        if process.returncode:
            last = errors.read().decode(errors="replace").strip().splitlines()[-1:]
            print(f"  {command[-2]} failed: {last}", file=sys.stderr)
            return None
        found = {
            "seconds": seconds,
            "processor": usage.ru_utime + usage.ru_stime,
            "peak": usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        }
        last_line = printed.read().splitlines()[-1]
        more = json.loads(last_line) if "--child" in command else {"work": float(last_line)}
        return found | more


def child(name: str, path: Path, checkout: Path = HERE) -> dict[str, float] | None:
    program = checkout / "benchmarks" / "verdict.py"
    return run([sys.executable, str(program), "--child", name, str(path)])


def best(runs: list[dict[str, float] | None]) -> dict[str, float] | None:
    found = [one for one in runs if one is not None]
    return min(found, key=lambda one: one["processor"], default=None)


def forget(path: Path) -> None:
    """Delete the store of a trace and all that was kept of reports, but what is made once."""
    shutil.rmtree(path.with_name(f"{path.name}.stepscope"), ignore_errors=True)
    for kept in Path(os.environ["STEPSCOPE_CACHE"]).glob("*"):
        if kept.name != ONCE:
            shutil.rmtree(kept, ignore_errors=True)


def measured(
    path: Path, repeat: int, with_peers: bool, before: Path | None
) -> dict[str, dict[str, float] | str]:
    """Each tool's best run, or why there is none."""
    versions = {"Stepscope": HERE} | ({} if before is None else {"before": before})
    runs: dict[str, list[dict[str, float] | None]] = {}
    for number in range(-1, repeat):
        for name, checkout in versions.items():
            forget(path)
            for state in ("cold", "warm"):
                found = child("report", path, checkout)
                if number >= 0:
                    runs.setdefault(f"{name}, {state}", []).append(found)
    results: dict[str, dict[str, float] | str] = {
        name: best(found) or "failed" for name, found in runs.items()
    }
    if not with_peers:
        return results
    for name, module in MODULES.items():
        if importlib.util.find_spec(module) is None:
            results[name] = "not installed"
        else:
            results[name] = child(name, path) or "failed"
    program = shutil.which("trace_processor_shell") or shutil.which("trace_processor")
    results["trace_processor"] = "not on PATH"
    if program is not None:
        command = [program, "-Q", TRACE_PROCESSOR_QUERY, str(path)]
        results["trace_processor"] = run(command) or "failed"
    return results


def table(label: str, results: dict[str, dict[str, float] | str]) -> None:
    cold = results["Stepscope, cold"]
    for name, found in results.items():
        if isinstance(found, str):
            print(f"| {label} | {name} | {found} | | | | |")
            continue
        ratio = f"{found['processor'] / cold['processor']:.2f}" if isinstance(cold, dict) else "–"
        stages = ", ".join(f"{stage} {found[stage]:.2f}" for stage in STAGES if stage in found)
        print(
            f"| {label} | {name} | {found['processor']:.2f} s | {ratio} | {found['seconds']:.2f} s"
            f" | {found['peak'] / 1e6:.0f} MB | {stages} |",
            flush=True,
        )


def answers(label: str, path: Path, results: dict[str, dict[str, float] | str]) -> None:
    """What the GPU did by each tool that answers, in seconds, beside Stepscope's answer."""
    tools = {
        name: found
        for name, found in results.items()
        if isinstance(found, dict) and found.keys() & set(ANSWERS)
    }
    own = child("timelines", path) if tools else None
    if own is None:
        return
    without_last = {
        answer: own[f"{answer}, without the last step"]
        for answer in ANSWERS
        if f"{answer}, without the last step" in own
    }
    rows = {"Stepscope": own, "Stepscope, without the last step": without_last, **tools}
    print(f"\n| {label}, in seconds | {' | '.join(ANSWERS)} |")
    print(f"|---|{'---:|' * len(ANSWERS)}")
    for name, found in rows.items():
        cells = (f"{found[answer]:.6f}" if answer in found else "–" for answer in ANSWERS)
        print(f"| {name} | {' | '.join(cells)} |")
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument(
        "--size", type=int, action="append", help="MB of JSON (250); stores begin at 200"
    )
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--before", type=Path, help="a checkout of another version, in turns")
    parser.add_argument("--peers-up-to", type=int, default=300, help="MB; peers need much memory")
    parser.add_argument("--directory", type=Path, help="where the inputs are created")
    options = parser.parse_args()
    print(
        "| Input | Tool | Processor time | × cold | Time | Peak memory | By stage |\n"
        "|---|---|---|---|---|---|---|"
    )
    if options.directory is not None:
        options.directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="stepscope-benchmark-") as made:
        os.environ["STEPSCOPE_CACHE"] = str(Path(made) / "cache")
        os.environ["PYTHONPYCACHEPREFIX"] = str(Path(made) / "byte-code")
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        for megabytes in options.size or [250]:
            path = Path(made) / "trace.json"
            # In a process of its own: a process starts with the peak memory of the one it is from.
            arguments = [str(options.trace), str(megabytes * 1_000_000), str(path)]
            subprocess.run([sys.executable, __file__, "--make", *arguments], check=True)
            label = f"{path.stat().st_size / 1e6:.0f} MB"
            with_peers = megabytes <= options.peers_up_to
            results = measured(path, options.repeat, with_peers, options.before)
            table(label, results)
            if with_peers:
                answers(label, path, results)
            shutil.rmtree(path.with_name(f"{path.name}.stepscope"), ignore_errors=True)
            path.unlink()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        stages = CHILDREN[sys.argv[2]](Path(sys.argv[3]))
        print(json.dumps(stages), file=sys.__stdout__)
    elif sys.argv[1:2] == ["--make"]:
        least_bytes = int(sys.argv[3])
        write_scaled(Path(sys.argv[4]), Path(sys.argv[2]), lambda size, _: size >= least_bytes)
    else:
        main()
