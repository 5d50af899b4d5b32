"""Cost of the monitor: CPU time of the sampler, as a share of one core, at a given interval.

The sampler is started as in a training, with this process and some children (like a DataLoader's
workers) to watch. Its CPU time is read from the operating system at two moments, so that its start
does not count; the start is printed separately. The time of a GPU's driver is included. Without
GPUs, only host and processes are read, unless --stub compiles the tests' stub, which answers at
once and shows the cost of our own code for two GPUs with every metric.

    python benchmarks/monitor_overhead.py [--interval 1.0] [--seconds 30] [--children 8] [--stub]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from stepscope.analysis.record.metrics import summarise_metrics
from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.ranks import RankIdentity
from stepscope.capture.record.monitoring import RankMonitor
from stepscope.run.layout import RankLayout
from stepscope.run.metrics import read_metrics_record

GOAL_PERCENT = 0.5
STUB = Path(__file__).parents[1] / "tests" / "support" / "nvml_stub.c"


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--interval", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--children", type=int, default=8)
    parser.add_argument("--stub", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.stub:
            library = Path(folder) / "libnvidia-ml.so.1"
            subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, STUB], check=True)
            os.environ.update(LD_LIBRARY_PATH=folder, STUB_GPM="1", STUB_PID=str(os.getpid()))
        sleeping = [sys.executable, "-c", "import sys; sys.stdin.read()"]
        children = [
            subprocess.Popen(sleeping, stdin=subprocess.PIPE) for _ in range(options.children)
        ]
        layout = RankLayout(Path(folder))
        config = CaptureConfig(monitor_interval_s=options.interval)
        beside = RankMonitor(config, layout, RankIdentity())
        try:
            time.sleep(max(3.0, 2 * options.interval))
            sampler = psutil.Process(read_metrics_record(layout.metrics).process_id)
            start, began = cpu_seconds(sampler), time.monotonic()
            time.sleep(options.seconds)
            spent, passed = cpu_seconds(sampler) - start, time.monotonic() - began
            resident = sampler.memory_info().rss / 2**20
        finally:
            problem = beside.close()
            for child in children:
                child.communicate()
        summary = summarise_metrics(layout.metrics)
        size = layout.metrics.stat().st_size
    percent = spent / passed * 100
    samples = passed / options.interval
    print(f"GPUs {len(summary.gpus)}, watched processes {options.children + 2}", end=", ")
    print(f"one sample in {options.interval:g} s, over {passed:.0f} s")
    print(f"CPU of one core      {percent:6.2f}%   (goal at 1 s: under {GOAL_PERCENT}%)")
    print(f"CPU per sample       {spent / samples * 1e3:6.2f} ms  (the clock counts in 10 ms)")
    print(f"its start took       {start:6.2f} s of CPU, including its first samples")
    print(f"resident memory      {resident:6.1f} MiB")
    print(f"file                 {size / summary.samples:6.0f} bytes per sample")
    if problem:
        sys.exit(problem)


if __name__ == "__main__":
    main()
