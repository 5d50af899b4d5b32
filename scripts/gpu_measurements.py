"""What a GPU and its driver do, and what recording costs on them; parts of a GPU session.

    python scripts/gpu_measurements.py NAME --out DIR --result FILE.json

NAME is one of:
    machine   versions, nvidia-smi, NVML, nsys, the cost of CUDA's start
    queue     how many launches fit in the launch queue, per stream and together, and what blocks
    calls     what single calls cost: launches, copies, allocations, events, statistics
    cost      the step with each way of recording, as a ratio to the bare loop
    window    a window after CUDA's start: its pause, and the GPU after it
    after     how long steps take after a window, with and without CUPTI being detached
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import platform
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gpu_part import (
    DEVICE,
    ON_GPU,
    Result,
    environment_words,
    measured_step_ns,
    median,
    parse,
    synchronise,
)

Times = list[int]
PACKAGES = ("polars", "duckdb", "orjson", "isal", "lz4", "starlette", "uvicorn", "pynvml", "psutil")


# -- machine ---------------------------------------------------------------------------------------


def machine(_: Path, result: Result) -> None:
    """What this machine is, and what of it cannot be used."""
    result.put(
        python=platform.python_version(),
        torch=torch.__version__,
        cuda=torch.version.cuda,
        kernel=platform.release(),
        cpus=len(os.sched_getaffinity(0)),
        variables=environment_words(),
        missing=[name for name in PACKAGES if importlib.util.find_spec(name) is None],
    )
    result.attempt("nsys", _nsys)
    result.attempt("nvml", _nvml)
    result.attempt("nvidia_smi", lambda: _output("nvidia-smi") if ON_GPU else "no GPU")
    if not ON_GPU:
        result.put(device="no GPU")
        return
    began = time.perf_counter()
    torch.zeros(1, device=DEVICE)
    torch.cuda.synchronize()
    started = time.perf_counter()
    torch.ones(1, device=DEVICE).add_(1)
    torch.cuda.synchronize()
    first = time.perf_counter()
    properties = torch.cuda.get_device_properties(0)
    result.put(
        device=properties.name,
        total_memory=properties.total_memory,
        processors=properties.multi_processor_count,
        cuda_start_s=round(started - began, 3),
        first_kernel_s=round(first - started, 3),
    )
    result.attempt("doctor", lambda: _output(sys.executable, "-m", "stepscope", "doctor"))


def _nsys() -> str:
    path = shutil.which("nsys")
    return "not installed" if path is None else f"{path}: {_output(path, '--version')}"


def _nvml() -> Any:
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    values: dict[str, Any] = {"driver": pynvml.nvmlSystemGetDriverVersion()}

    def attempt(name: str, of: str = "") -> str:
        try:
            value = getattr(pynvml, name)(handle)
            return str(getattr(value, of) if of else value)
        except (pynvml.NVMLError, AttributeError) as error:
            return f"{type(error).__name__}: {error}"

    for name in (
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetTotalEnergyConsumption",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetComputeRunningProcesses",
    ):
        values[name] = attempt(name)
    values["gpm"] = attempt("nvmlGpmQueryDeviceSupport", "isSupportedDevice")
    return values


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=40, check=False)
    return (done.stdout + done.stderr)[-4000:]


# -- queue -----------------------------------------------------------------------------------------

LIMIT = 5000  # launches tried before a queue counts as unbounded
BLOCKED_NS = 3_000_000
"""A call that takes longer waited for the kernel in front: no launch costs milliseconds."""


def queue(_: Path, result: Result) -> None:
    """Depth of the launch queue, found by launching behind one long kernel."""
    rate = _cycles_per_ms()
    result.put(cycles_per_ms=rate)
    # First launches load modules, which would look like blocking.
    tensor = torch.ones(1 << 10, device=DEVICE)
    large = torch.ones(4 << 20, device=DEVICE)
    copy = torch.empty_like(large)
    event = torch.cuda.Event()
    timing = [torch.cuda.Event(enable_timing=True) for _ in range(16)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tensor.add_(1)
    works: dict[str, Callable[[int], object]] = {
        "empty kernels": lambda _: torch.cuda._sleep(1),
        "elementwise kernels": lambda _: tensor.add_(1),
        "copies on the device": lambda _: copy.copy_(large),
        "memsets": lambda _: tensor.zero_(),
        "event records": lambda _: event.record(),
        "kernel and timing event": lambda n: (tensor.add_(1), timing[n % 16].record()),
        "graph launches of one kernel": lambda _: graph.replay(),
    }
    for work in works.values():
        for number in range(20):
            work(number)
    torch.cuda.synchronize()
    for name, work in works.items():
        result.attempt(f"depth of {name}", lambda work=work: _depth(work, rate))  # type: ignore[misc]
    for streams in (2, 4, 16):
        result.attempt(
            f"depth of {streams} streams in turn",
            lambda n=streams: _depth_of_streams(n, rate),  # type: ignore[misc]
        )
    result.attempt("second stream while the first is full", lambda: _second_stream(rate))
    result.attempt("second thread while the first is blocked", lambda: _second_thread(rate))
    result.attempt("steady launches of 30 µs kernels", lambda: _steady(rate))
    result.attempt(
        "depth under torch.profiler",
        lambda: _profiled(lambda: _depth(works["elementwise kernels"], rate)),
    )
    result.attempt("steady launches under torch.profiler", lambda: _profiled(lambda: _steady(rate)))
    result.attempt("copies behind a long kernel", lambda: _copies_behind(rate))


def _cycles_per_ms() -> int:
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(1000)
    for _ in range(2):
        began.record()
        torch.cuda._sleep(50_000_000)
        ended.record()
        torch.cuda.synchronize()
    taken_ms: float = began.elapsed_time(ended)
    return round(50_000_000 / taken_ms)


def _timed(work: Callable[[int], object], count: int, *, until_blocked: bool = True) -> Times:
    """Nanoseconds of each call, up to the first that blocks."""
    clock, times = time.perf_counter_ns, []
    for number in range(count):
        began = clock()
        work(number)
        times.append(clock() - began)
        if until_blocked and times[-1] > BLOCKED_NS:
            break
    return times


def _summary(times: Times) -> dict[str, Any]:
    """Where the first call blocked, and what the others cost."""
    blocked = [number for number, took in enumerate(times) if took > BLOCKED_NS]
    return {
        "calls_before_the_first_that_blocks": blocked[0] if blocked else None,
        "calls": len(times),
        "blocked_ms": round(times[blocked[0]] / 1e6, 2) if blocked else None,
        "median_call_ns": median(times),
        "longest_before_ns": max(times[: blocked[0]] if blocked else times, default=None),
    }


def _depth(work: Callable[[int], object], rate: int) -> dict[str, Any]:
    torch.cuda.synchronize()
    torch.cuda._sleep(150 * rate)
    time.sleep(0.005)  # the long kernel has begun: it is in the queue no more
    times = _timed(work, LIMIT)
    torch.cuda.synchronize()
    return _summary(times)


def _depth_of_streams(count: int, rate: int) -> dict[str, Any]:
    streams = [torch.cuda.Stream() for _ in range(count)]
    for stream in streams:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(1)
    torch.cuda.synchronize()
    for stream in streams:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(500 * rate)
    time.sleep(0.005)

    def work(number: int) -> None:
        with torch.cuda.stream(streams[number % count]):
            torch.cuda._sleep(1)

    times = _timed(work, LIMIT * 4)
    torch.cuda.synchronize()
    return _summary(times)


def _second_stream(rate: int) -> dict[str, Any]:
    """Fills one stream short of blocking, then launches on another."""
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    for stream in (first, second):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(1)
    torch.cuda.synchronize()
    for stream in (first, second):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(200 * rate)
    time.sleep(0.005)
    with torch.cuda.stream(first):
        filled = _timed(lambda _: torch.cuda._sleep(1), 1000)
    with torch.cuda.stream(second):
        times = _timed(lambda _: torch.cuda._sleep(1), LIMIT)
    torch.cuda.synchronize()
    return {"on_the_first": len(filled), "on_the_second": _summary(times)}


def _second_thread(rate: int) -> dict[str, Any]:
    """One thread blocks on a full stream; can another launch on a stream of its own?

    `torch.cuda._sleep` may keep Python's lock while it blocks, an operator does not.
    """
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    tensors = {}
    for stream in (first, second):
        with torch.cuda.stream(stream):
            tensors[stream] = torch.ones(1 << 10, device=DEVICE).add_(1)
    torch.cuda.synchronize()
    with torch.cuda.stream(first):
        torch.cuda._sleep(300 * rate)
    blocking: list[tuple[int, int]] = []

    def fill() -> None:
        tensor = tensors[first]
        with torch.cuda.stream(first):
            for _ in range(LIMIT):
                began = time.perf_counter_ns()
                tensor.add_(1)
                ended = time.perf_counter_ns()
                if ended - began > BLOCKED_NS:
                    blocking.append((began, ended))
                    return

    thread = threading.Thread(target=fill)
    thread.start()
    time.sleep(0.08)  # the queue is full by now
    times = []
    tensor = tensors[second]
    with torch.cuda.stream(second):
        for _ in range(50):
            began = time.perf_counter_ns()
            tensor.add_(1)
            times.append((began, time.perf_counter_ns()))
    thread.join()
    torch.cuda.synchronize()
    if not blocking:
        return {"first_thread": "never blocked"}
    (start, end), took = blocking[0], [after - before for before, after in times]
    return {
        "first_thread_blocked_ms": round((end - start) / 1e6, 2),
        "second_thread_longest_call_ms": round(max(took) / 1e6, 3),
        "second_thread_calls_while_blocked": sum(start < after < end for _, after in times),
    }


def _steady(rate: int) -> dict[str, Any]:
    """Launch times with the queue full: does each launch wait for one slot, or some for many?"""
    cycles = round(0.03 * rate)
    torch.cuda.synchronize()
    times = _timed(lambda _: torch.cuda._sleep(cycles), 6000, until_blocked=False)
    torch.cuda.synchronize()
    tail = times[2500:]
    threshold = 4 * statistics.median(times[:500])
    waits = [took for took in tail if took > threshold]
    gaps = [number for number, took in enumerate(tail) if took > threshold]
    between = [after - before for before, after in itertools.pairwise(gaps)]
    first = next((n for n, took in enumerate(times[50:], 50) if took > threshold * 3), None)
    return {
        "launch_ns_at_first": round(statistics.median(times[:500])),
        "first_long_launch": first,
        "share_that_waits_when_full": round(len(waits) / len(tail), 3),
        "median_wait_ns": round(statistics.median(waits)) if waits else 0,
        "longest_wait_ns": max(waits, default=0),
        "median_launches_between_waits": round(statistics.median(between)) if between else 0,
        "launch_ns_around_the_first": times[max(0, (first or 0) - 5) : (first or 0) + 200],
    }


def _profiled(measure: Callable[[], Any]) -> Any:
    with torch.profiler.profile(activities=list(torch.profiler.supported_activities())):
        return measure()


def _copies_behind(rate: int) -> dict[str, Any]:
    """Milliseconds that each kind of copy blocks behind a kernel of 60 ms."""
    found = {}
    for size in (4 << 10, 60 << 10, 64 << 10, 1 << 20, 64 << 20):
        host = torch.ones(size, dtype=torch.uint8)
        pinned = host.pin_memory()
        there = host.to(DEVICE)
        for kind, to, source, is_async in (
            ("pageable to GPU", there, host, False),
            ("pageable to GPU, non_blocking", there, host, True),
            ("pinned to GPU", there, pinned, False),
            ("pinned to GPU, non_blocking", there, pinned, True),
            ("GPU to pageable, non_blocking", host, there, True),
            ("GPU to pinned, non_blocking", pinned, there, True),
        ):
            to.copy_(source, non_blocking=is_async)
            torch.cuda.synchronize()
            torch.cuda._sleep(60 * rate)
            began = time.perf_counter()
            to.copy_(source, non_blocking=is_async)
            found[f"{kind}, {size >> 10} KiB"] = round((time.perf_counter() - began) * 1e3, 3)
            torch.cuda.synchronize()
    return found


# -- calls -----------------------------------------------------------------------------------------


def calls(out: Path, result: Result) -> None:
    """What a single call costs the thread that makes it, with nothing else going on."""
    tensor = torch.ones(1 << 10, device=DEVICE)
    host = torch.ones(64 << 20, dtype=torch.uint8)
    pinned = host.pin_memory()
    there = torch.empty(64 << 20, dtype=torch.uint8, device=DEVICE)
    event = torch.cuda.Event(enable_timing=True)
    other = torch.cuda.Event(enable_timing=True)
    event.record()
    other.record()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(100):
            tensor.add_(1)

    def allocate() -> None:
        torch.cuda.empty_cache()
        torch.empty(512 << 20, dtype=torch.uint8, device=DEVICE)

    measured: dict[str, tuple[Callable[[], object], int]] = {
        "launch through torch.cuda._sleep": (lambda: torch.cuda._sleep(1), 300),
        "tensor.add_(1)": (lambda: tensor.add_(1), 300),
        "replay of a graph of 100 kernels": (graph.replay, 100),
        "Event.record": (event.record, 300),
        "Event.query": (event.query, 300),
        "Event.elapsed_time": (lambda: event.elapsed_time(other), 300),
        "new Event(enable_timing) and record": (
            lambda: torch.cuda.Event(enable_timing=True).record(),
            300,
        ),
        "torch.cuda.synchronize, idle": (torch.cuda.synchronize, 100),
        "tensor.sum().item()": (lambda: tensor.sum().item(), 100),
        "memory_stats": (torch.cuda.memory_stats, 100),
        "memory_allocated": (torch.cuda.memory_allocated, 100),
        "memory_reserved": (torch.cuda.memory_reserved, 100),
        "mem_get_info": (torch.cuda.mem_get_info, 50),
        "pageable 64 MiB to GPU": (lambda: there.copy_(host), 10),
        "pinned 64 MiB to GPU, and wait": (lambda: there.copy_(pinned), 10),
        "pinned 64 MiB to GPU, non_blocking": (lambda: there.copy_(pinned, non_blocking=True), 10),
        "GPU to pageable 64 MiB": (lambda: host.copy_(there), 10),
        "pin_memory of 64 MiB": (host.pin_memory, 5),
        "cudaFree and cudaMalloc of 512 MiB": (allocate, 5),
    }
    for name, options in VARIANTS.items():
        if options is not None and options["wait"]:
            result.attempt(f"Profiler.step(), {name}", lambda o=options: _step_call(o, out))  # type: ignore[misc]
    for name, (call, repeats) in measured.items():
        result.attempt(name, lambda call=call, repeats=repeats: _cost(call, repeats))  # type: ignore[misc]


def _step_call(options: dict[str, Any], out: Path) -> dict[str, int]:
    """What the call costs after a step that launched one kernel."""
    import stepscope

    options = {name: value for name, value in options.items() if name != "phases"}
    tensor = torch.ones(1 << 10, device=DEVICE)
    times = []
    with stepscope.Profiler(output_dir=out / "calls", announce=False, **options) as profiler:
        for _ in range(400):
            tensor.add_(1)
            began = time.perf_counter_ns()
            profiler.step()
            times.append(time.perf_counter_ns() - began)
    return {"median_ns": median(times), "least_ns": min(times), "most_ns": max(times[10:])}


def _cost(call: Callable[[], object], repeats: int) -> dict[str, int]:
    for _ in range(3):
        call()
    synchronise()
    times = _timed(lambda _: call(), repeats, until_blocked=False)
    synchronise()
    return {"median_ns": median(times), "least_ns": min(times), "most_ns": max(times)}


# -- cost ------------------------------------------------------------------------------------------

WAITING: dict[str, Any] = {"wait": 10**9}
WINDOW: dict[str, Any] = {"wait": 0, "warmup": 3, "active": 20}
ROUNDS = 3 if ON_GPU else 1
VARIANTS: dict[str, dict[str, Any] | None] = {
    "bare loop": None,
    "waiting, without the step record": {**WAITING, "step_record": False},
    "waiting (the default)": WAITING,
    "waiting, with three phases": {**WAITING, "phases": True},
    "waiting, auto_phases": {**WAITING, "auto_phases": True},
    "waiting, memory_log": {**WAITING, "memory_log": True},
    "waiting, monitor": {**WAITING, "monitor": True},
    "waiting, memory_history": {**WAITING, "memory_history": True},
    "window": WINDOW,
    "window: shapes": {**WINDOW, "record_shapes": True},
    "window: shapes, memory": {**WINDOW, "record_shapes": True, "profile_memory": True},
    "window: shapes, stacks": {**WINDOW, "record_shapes": True, "with_stack": True},
}


def cost(out: Path, result: Result) -> None:
    """The step of a training whose host is the bottleneck, so that all that is added shows."""
    from gpu_trainings import layers, plain_sgd

    model = layers(256 if ON_GPU else 16, 40 if ON_GPU else 4, torch.float32)
    optimizer = plain_sgd(model)
    batch = torch.randn(32, 256 if ON_GPU else 16, device=DEVICE)
    for number in range(ROUNDS):
        for name, options in VARIANTS.items():
            key = f"{name} #{number}"
            result.attempt(key, lambda o=options: _step_with(o, model, optimizer, batch, out))  # type: ignore[misc]
    bare = [result.values[f"bare loop #{number}"]["step_ns"] for number in range(ROUNDS)]
    table = {}
    for name in VARIANTS:
        rows = [result.values.get(f"{name} #{number}", {}) for number in range(ROUNDS)]
        steps = [row["step_ns"] for row in rows if "step_ns" in row]
        ratios = [step / base for step, base in zip(steps, bare, strict=False)]
        table[name] = {
            "step_ns": median(steps) if steps else None,
            "ratio": round(statistics.median(ratios), 4) if ratios else None,
            "ratios": [round(ratio, 4) for ratio in ratios],
            "end_s": round(max((row.get("end_s", 0) for row in rows), default=0), 3),
        }
    result.put(table=table)


def _step_with(
    options: dict[str, Any] | None,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: torch.Tensor,
    out: Path,
) -> dict[str, Any]:
    import contextlib

    import stepscope

    options = None if options is None else dict(options)
    has_phases = options is not None and options.pop("phases", False)
    profiler = None
    if options is not None:
        profiler = stepscope.Profiler(output_dir=out / "cost", announce=False, **options)

    def phase(name: str) -> contextlib.AbstractContextManager[None]:
        return profiler.phase(name) if profiler and has_phases else contextlib.nullcontext()

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with phase("forward"):
            loss = model(batch).square().mean()
        with phase("backward"):
            loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
        with phase("optimizer"):
            optimizer.step()
        if profiler is not None:
            profiler.step()

    if profiler is not None:
        profiler.start()
    is_window = options is not None and options["wait"] == 0
    if is_window:
        for _ in range(5):
            step()
        synchronise()
        clock, times = time.perf_counter_ns, []
        for _ in range(15):
            began = clock()
            step()
            times.append(clock() - began)
        step_ns = median(times)
    else:
        step_ns = median(measured_step_ns(step, 0.2 if ON_GPU else 0.05, 3))
    synchronise()
    began_end = time.perf_counter()
    if profiler is not None:
        profiler.stop()
    return {"step_ns": step_ns, "end_s": time.perf_counter() - began_end}


# -- window ----------------------------------------------------------------------------------------


def window(out: Path, result: Result) -> None:
    """A window after CUDA's start: its state, its pause, and the GPU after."""
    result.attempt("window", lambda: _window_in(out))


def _window_in(out: Path) -> dict[str, Any]:
    import stepscope

    width = 1024 if ON_GPU else 16
    layer = torch.nn.Linear(width, width, device=DEVICE)
    batch = torch.randn(64, width, device=DEVICE)
    moments = []
    with stepscope.Profiler(
        output_dir=out,
        run_name="window",
        wait=3,
        warmup=2,
        active=5,
        announce=False,
    ) as profiler:
        for _ in range(20):
            for _ in range(50):
                layer(batch).sum().backward()
            synchronise()
            profiler.step()
            moments.append(time.perf_counter())
    steps = [after - before for before, after in itertools.pairwise(moments)]
    run = stepscope.open_run(str(profiler.run_path))
    manifest = run.ranks[0].manifest
    windows = () if manifest is None else manifest.windows
    before = float(layer(batch).sum().item())
    return {
        "windows": [f"{window.state} {window.reason or ''}".strip() for window in windows],
        "pauses_ms": [round((window.pause_ns or 0) / 1e6, 2) for window in windows],
        "problems": [str(problem) for problem in (manifest.problems if manifest else ())],
        "median_step_ms": round(statistics.median(steps) * 1e3, 3),
        "longest_step_ms": round(max(steps) * 1e3, 3),
        "same_result_after": before == float(layer(batch).sum().item()),
    }


# -- after -----------------------------------------------------------------------------------------

BEFORE, WARM_UP, RECORDED, AFTER = 30, 2, 4, 60
SETTINGS: dict[str, str | None] = {"as torch decides": None, "left": "0", "detached": "1"}
"""Values of TEARDOWN_CUPTI, which Kineto reads at the end of each recording."""


def after(_: Path, result: Result) -> None:
    """Steps before, in and after two windows of torch's own profiler, whose host is busy."""
    from gpu_trainings import launch_bound

    train = launch_bound(is_fixed=False).step

    def timed() -> int:
        began = time.perf_counter_ns()
        train(None)
        synchronise()
        return time.perf_counter_ns() - began

    for _step in range(BEFORE):
        timed()
    for name, value in SETTINGS.items():
        os.environ.pop("TEARDOWN_CUPTI", None)
        if value is not None:
            os.environ["TEARDOWN_CUPTI"] = value
        for number in (1, 2):
            result.attempt(f"{name}, window {number}", lambda: _steps_around(timed))


def _steps_around(timed: Callable[[], int]) -> dict[str, int]:
    before = [timed() for _ in range(BEFORE)]
    profiler = torch.profiler.profile(
        activities=list(torch.profiler.supported_activities()),
        schedule=torch.profiler.schedule(wait=0, warmup=WARM_UP, active=RECORDED, repeat=1),
    )
    inside = []
    with profiler:
        for _ in range(WARM_UP + RECORDED):
            inside.append(timed())
            profiler.step()
    followed = [timed() for _ in range(AFTER)]
    kernels = sum("cuda" in str(event.device_type).lower() for event in profiler.events() or ())
    return {
        "before_ns": median(before),
        "warm_up_ns": median(inside[:WARM_UP]),
        "recorded_ns": median(inside[WARM_UP:]),
        "first_after_ns": followed[0],
        "second_after_ns": followed[1],
        "third_to_tenth_ns": median(followed[2:10]),
        "later_ns": median(followed[10:]),
        "device_events": kernels,
    }


MEASUREMENTS: dict[str, Callable[[Path, Result], None]] = {
    "machine": machine,
    "queue": queue,
    "calls": calls,
    "cost": cost,
    "window": window,
    "after": after,
}


def main() -> None:
    """Make one measurement."""
    name, out, result = parse(__doc__, tuple(MEASUREMENTS))
    MEASUREMENTS[name](out, result)


if __name__ == "__main__":
    main()
