# ruff: noqa: E501 - the templates of events and tables are clearer on one line
"""How fast traces load, and with how much memory, compared with other loaders in the same run.

    python benchmarks/loading.py                       # 300 MB, one-line heads
    python benchmarks/loading.py --size 2700 --layout new --layout old --layout minified --gzip
    python benchmarks/loading.py --trace a/trace.json.gz --trace b/trace.json   # real shapes

Creates its inputs, and deletes them afterwards: a synthetic training step, or the events of real
traces in the layout of their files, repeated with shifted times and identifiers. Every measurement is a separate process; of `--repeat` runs, the fastest
counts. On a shared machine, processor time is more reliable than time. Peak memory is the
process's largest resident set, including its libraries.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

SOURCE = Path(__file__).resolve().parents[1] / "src"
SCALED = Path(__file__).with_name("scaled_trace.py")
TIME_DIGITS, ID_DIGITS = 13, 10
FIRST_TIME, FIRST_ID = 4_458_676_000_000, 1_000_000_000

# -- inputs ----------------------------------------------------------------------------------


def step_events(chance: random.Random, operators: int) -> Iterator[dict[str, object]]:
    """One training step: Python frames, operators, launches, kernels, copies, flows, memory."""
    kernels = [
        f"void at::native::vectorized_elementwise_kernel<4, at::native::functor_{number}<float>, "
        f"std::array<char*, {number % 5}ul> >(int, at::native::functor_{number}<float>)"
        for number in range(120)
    ]
    names = [f"aten::operator_{number}" for number in range(150)]
    at = 0.0
    for number in range(operators):
        at += 3 + chance.random() * 20
        host = {"pid": 4242, "tid": 4242 + number % 3}
        moment = f"T{FIRST_TIME + int(at)}.{chance.randrange(1000):03}"
        link = f"I{FIRST_ID + number}"
        yield {"ph": "X", "cat": "cpu_op", "name": chance.choice(names), **host, "ts": moment,
               "dur": f"#{chance.randrange(5, 90)}.{chance.randrange(1000):03}",
               "args": {"External id": link, "Record function id": 0,
                        "Concrete Inputs": ["", "", "1"], "Input type": ["float", "float", "Scalar"],
                        "Input Dims": [[64, 256, 56, 56], [256, 64, 1, 1], []], "Ev Idx": number}}  # fmt: skip
        if number % 2:
            yield {"ph": "X", "cat": "python_function", "name": f"torch/nn/modules/module_{number % 400}.py({number % 900}): forward",
                   **host, "ts": moment, "dur": "#12.345",
                   "args": {"Python id": number, "Python parent id": number // 2, "Ev Idx": number}}  # fmt: skip
        if number % 3 == 0:
            continue
        yield {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", **host, "ts": moment,
               "dur": "#4.210", "args": {"External id": link, "cbid": 211, "correlation": link}}  # fmt: skip
        yield {"ph": "s", "id": link, **host, "ts": moment, "cat": "ac2g", "name": "ac2g"}
        yield {"ph": "X", "cat": "kernel", "name": chance.choice(kernels), "pid": 0, "tid": 7,
               "ts": moment, "dur": f"#{chance.randrange(2, 60)}.{chance.randrange(1000):03}",
               "args": {"External id": link, "queued": 0, "device": 0, "context": 1, "stream": 7,
                        "correlation": link, "registers per thread": 32, "shared memory": 16384,
                        "blocks per SM": "#7.407407", "warps per SM": "#59.259258",
                        "grid": [800, 1, 1], "block": [256, 1, 1],
                        "est. achieved occupancy %": 62}}  # fmt: skip
        yield {"ph": "f", "id": link, "pid": 0, "tid": 7, "ts": moment, "cat": "ac2g",
               "name": "ac2g", "bp": "e"}  # fmt: skip


def text_of(value: object, compact: bool) -> str:
    """JSON, with marked numbers as numbers."""
    if isinstance(value, str) and value[:1] in ("T", "I", "#") and value[1:2].isdigit():
        return value if value[0] != "#" else value[1:]
    separators = (",", ":") if compact else (", ", ": ")
    if isinstance(value, dict):
        members = (f'"{key}"{separators[1]}{text_of(item, compact)}' for key, item in value.items())
        return "{" + separators[0].join(members) + "}"
    return json.dumps(value, separators=separators)


def event_text(event: dict[str, object], layout: str) -> str:
    """One event, with `T` and `I` before the numbers that are shifted."""
    if layout == "minified":
        return text_of(event, compact=True)
    members = {key: text_of(value, compact=False) for key, value in event.items() if key != "args"}
    if layout == "new":
        lines = [f'    "{key}": {value}' for key, value in members.items()]
    else:
        times = ("ts", "dur")
        head = ", ".join(f'"{k}": {v}' for k, v in members.items() if k not in times)
        tail = ", ".join(f'"{k}": {v}' for k, v in members.items() if k in times)
        lines = [f"    {head}", f"    {tail}"]
    if "args" in event:
        inside = text_of(event["args"], compact=False)[1:-1]
        lines.append(f'    "args": {{\n      {inside}\n    }}')
    return "  {\n" + ",\n".join(lines) + "\n  }"


def write_input(path: Path, size: int, layout: str) -> None:
    """Writes a trace of about `size` bytes."""
    separator = "," if layout == "minified" else ",\n"
    events = step_events(random.Random(1), 6000)
    marked = separator.join(event_text(event, layout) for event in events).encode()
    raw = np.frombuffer(marked, np.uint8)
    digits = np.append((raw[1:] >= 48) & (raw[1:] <= 57), False)
    boundary = np.append(True, np.isin(raw[:-1], (32, 58)))
    times = np.flatnonzero((raw == ord("T")) & digits & boundary)
    links = np.flatnonzero((raw == ord("I")) & digits & boundary)
    keep = np.ones(len(raw), bool)
    keep[times] = keep[links] = False
    where = np.cumsum(keep) - 1
    block = raw[keep].copy()
    places = ((where[times] + 1, TIME_DIGITS, 300_000), (where[links] + 1, ID_DIGITS, 6000))
    fields = []
    for starts, width, shift in places:
        cells = starts[:, None] + np.arange(width)
        powers = 10 ** np.arange(width - 1, -1, -1, dtype=np.int64)
        fields.append((cells, powers, ((block[cells] - 48) * powers).sum(axis=1), shift))
    with path.open("wb") as target:
        target.write(b'{"schemaVersion": 1, "deviceProperties": [], "traceEvents": [\n')
        for copy in range(max(1, size // len(block))):
            for cells, powers, values, shift in fields:
                block[cells] = (values + copy * shift)[:, None] // powers % 10 + 48
            target.write((separator.encode() if copy else b"") + block.tobytes())
        target.write(b'\n],"traceName": "synthetic"}')


# -- measurements, each in a separate process ---------------------------------------------------


def ours_memory(path: Path) -> int:
    from stepscope.trace.load import load

    return load(path, store=False).events.collect().height


def ours_store(path: Path) -> int:
    from stepscope.trace.load import load

    return int(load(path, store=True).events.select("event").collect().height)


def reading(path: Path) -> int:
    """Read the file's bytes into new memory: a lower bound for every loader into memory."""
    held = []
    with path.open("rb", buffering=0) as opened:
        while block := opened.read(4 << 20):
            held.append(block)
    return sum(map(len, held))


def orjson_columns(path: Path) -> int:
    """The straightforward way: parse everything, then build columns with polars."""
    import orjson
    import polars as pl

    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    events = [event for event in orjson.loads(data)["traceEvents"] if event["ph"] == "X"]
    args = [event.get("args", {}) for event in events]
    columns = {key: [event.get(key) for event in events] for key in ("name", "cat", "ts", "dur")}
    columns |= {key: [str(event.get(key)) for event in events] for key in ("pid", "tid")}
    for key in ("External id", "correlation", "device", "stream"):
        columns[key] = [found.get(key) for found in args]
    columns["args"] = [orjson.dumps(found).decode() for found in args]
    return pl.DataFrame(columns).height


def hta(path: Path) -> int:
    from hta.common.trace_parser import parse_trace_dataframe
    from hta.configs.parser_config import ParserConfig

    _, frame, _ = parse_trace_dataframe(str(path), ParserConfig.get_default_cfg())
    return len(frame)


CHILDREN = {f.__name__: f for f in (ours_memory, ours_store, reading, orjson_columns, hta)}


def child(kind: str, path: Path) -> None:
    """Runs one measurement, and prints it."""
    import resource

    sys.path.insert(0, str(SOURCE))
    if kind.startswith("ours"):  # exclude imports and compilation from the measurement
        import stepscope.trace.formats.chrome.scan
        import stepscope.trace.load

        with tempfile.TemporaryDirectory() as directory:
            small = Path(directory) / "small.json"
            write_input(small, 1, "old")
            for store in {False, kind == "ours_store"}:
                stepscope.trace.load.load(small, store=store)
    began, worked = time.perf_counter(), time.process_time()
    rows = CHILDREN[kind](path)
    seconds, worked = time.perf_counter() - began, time.process_time() - worked
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    result = {"seconds": seconds, "processor": worked, "rows": rows, "peak": peak}
    if kind == "ours_store":
        result |= reopening(path)
    print(json.dumps(result))


def reopening(path: Path) -> dict[str, float]:
    """Reopens the store, and finds the ten kernels that take longest."""
    import polars as pl

    from stepscope.trace.load import load

    timings = []
    for _ in range(5):
        began = time.perf_counter()
        trace = load(path)
        opened = time.perf_counter()
        (
            trace.events.filter(pl.col("category") == "kernel")
            .group_by("name_id")
            .agg(pl.col("dur_ns").sum())
            .top_k(10, by="dur_ns")
            .join(trace.names, on="name_id")
            .collect()
        )
        timings.append((opened - began, time.perf_counter() - opened))
    return {"open": min(t[0] for t in timings), "top_kernels": min(t[1] for t in timings)}


def measure(kind: str, path: Path, repeat: int) -> dict[str, float] | None:
    """The fastest of several runs; None if it fails."""
    best: dict[str, float] | None = None
    for _ in range(repeat):
        shutil.rmtree(path.with_name(path.name + ".stepscope"), ignore_errors=True)
        command = [sys.executable, __file__, "--child", kind, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"  {kind} failed: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
            return None
        found = json.loads(done.stdout.strip().splitlines()[-1])
        if best is None or found["seconds"] < best["seconds"]:
            best = found
    return best


def first_use(path: Path, small: Path) -> dict[str, float]:
    """Seconds of whole processes: imports only, a small file, and an empty compile cache."""

    def run(code: str, **environment: str) -> float:
        began = time.perf_counter()
        prefix = f"import sys; sys.path.insert(0, {str(SOURCE)!r})\n"
        subprocess.run(
            [sys.executable, "-c", prefix + code], check=True, env=os.environ | environment
        )
        return time.perf_counter() - began

    read = "from stepscope.trace.load import load\nload({!r}, store=False).events.collect()"
    with tempfile.TemporaryDirectory() as cache:
        run(read.format(str(path)))
        warm = min(run(read.format(str(path))) for _ in range(2))
        return {
            "import": min(run("import stepscope.trace.load") for _ in range(2)),
            "small": min(run(read.format(str(small))) for _ in range(2)),
            "empty_cache": run(read.format(str(path)), STEPSCOPE_COMPILED=cache) - warm,
        }


def trace_processor(path: Path) -> dict[str, float] | None:
    """Perfetto's trace_processor, if it is on PATH."""
    program = shutil.which("trace_processor_shell") or shutil.which("trace_processor")
    if program is None:
        return None
    began = time.perf_counter()
    query = "select count(*) from slice"
    subprocess.run([program, "-Q", query, str(path)], capture_output=True, check=True)
    return {"seconds": time.perf_counter() - began}


def report(path: Path, label: str, size: int, options: argparse.Namespace) -> None:
    """Measures one file and prints its rows of the table."""
    results = {
        "reading the bytes alone": measure("reading", path, options.repeat),
        "Stepscope, in memory": measure("ours_memory", path, options.repeat),
        "Stepscope, to the store": measure("ours_store", path, options.repeat),
    }
    if size <= options.peers_up_to * 1_000_000:
        results["orjson to columns"] = measure("orjson_columns", path, 1)
        if importlib.util.find_spec("hta") is not None:
            results["HTA"] = measure("hta", path, 1)
    results["trace_processor"] = trace_processor(path)
    peer = results.get("orjson to columns")
    for name, found in results.items():
        if found is None:
            continue
        rate = size / found["seconds"] / 1e6
        ratio = f"{peer['seconds'] / found['seconds']:.1f}" if peer else "–"
        worked = f"{found['processor']:.2f} s" if "processor" in found else "–"
        memory = f"{found['peak'] / 1e6:.0f} MB" if "peak" in found else "–"
        print(
            f"| {label} | {name} | {found['seconds']:.2f} s | {rate:.0f} MB/s | {worked} | {memory} | {ratio} |",
            flush=True,
        )
        if "open" in found:
            print(
                f"| {label} | reopen, then top kernels | {found['open'] * 1e3:.1f} ms, "
                f"{found['top_kernels'] * 1e3:.1f} ms | – | – | – | – |"
            )


def inputs(directory: Path, size: int, options: argparse.Namespace) -> Iterator[tuple[str, Path]]:
    """Writes each input of a size when it is its turn, and says what it is."""
    for layout in options.layout or ([] if options.trace else ["old"]):
        path = directory / f"{layout}.json"
        write_input(path, size, layout)
        yield layout, path
    for trace in options.trace or []:
        path = directory / "real.json"
        # In a process of its own: what this one uses would count as the peak of those it starts.
        command = [sys.executable, str(SCALED), str(trace), str(path), str(size)]
        subprocess.run(command, check=True)
        yield f"{trace.parent.name}/{trace.name}", path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, action="append", help="MB of JSON (300)")
    parser.add_argument("--layout", choices=("old", "new", "minified"), action="append")
    parser.add_argument(
        "--trace", type=Path, action="append", help="a real trace; without --layout, only these"
    )
    parser.add_argument("--gzip", action="store_true", help="also measure a .json.gz of each")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--peers-up-to", type=int, default=300, help="MB; peers need much memory")
    parser.add_argument("--directory", type=Path, help="where the inputs are created")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child[0], Path(options.child[1]))
        return
    if options.directory is not None:
        options.directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="stepscope-benchmark-") as made:
        directory = Path(made)
        print(
            "| Input | Loader | Time | Rate | Processor time | Peak memory | × orjson |\n|---|---|---|---|---|---|---|"
        )
        for megabytes in options.size or [300]:
            for shape, path in inputs(directory, megabytes * 1_000_000, options):
                size = path.stat().st_size
                label = f"{size / 1e6:.0f} MB, {shape}"
                report(path, label, size, options)
                if options.gzip:
                    packed = path.with_name(path.name + ".gz")
                    with path.open("rb") as plain, gzip.open(packed, "wb", 1) as target:
                        shutil.copyfileobj(plain, target, 1 << 22)
                    path.unlink()
                    report(packed, f"{label}, .gz", size, options)
                for left in directory.iterdir():
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
        small, medium = directory / "small.json", directory / "medium.json"
        write_input(small, 5_000_000, "old")
        write_input(medium, 30_000_000, "old")
        found = first_use(medium, small)
        print(
            f"\nWhole processes: imports {found['import']:.2f} s; reading a "
            f"{small.stat().st_size / 1e6:.0f} MB file {found['small']:.2f} s; an empty compile cache "
            f"adds {found['empty_cache']:.2f} s once."
        )


if __name__ == "__main__":
    main()
