"""How long commands take to start, compared with bare Python and with importing numpy.

    python benchmarks/command_start.py          # help and version
    python benchmarks/command_start.py TRACE    # also what reads TRACE, which should have a store

Each command that reads runs once before it is timed, so that it finds the store of the trace and
what is kept in it. Processor time counts the whole process; on a shared machine, it is more
reliable than time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time

CASES = {
    "python -c pass": ["-c", "pass"],
    "python -c 'import numpy'": ["-c", "import numpy"],
    "python -c 'import stepscope'": ["-c", "import stepscope"],
    "stepscope --version": ["-m", "stepscope", "--version"],
    "stepscope --help": ["-m", "stepscope", "--help"],
    "stepscope doctor --help": ["-m", "stepscope", "doctor", "--help"],
}
READING = (("report",), ("info",), ("show", "steps"), ("show", "timeline"))


def run(arguments: list[str]) -> tuple[float, float]:
    """Time and processor time of a process, in seconds."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{arguments} failed with {process.returncode}")
    return time.perf_counter() - began, usage.ru_utime + usage.ru_stime


def main() -> None:
    """Run the cases in turn, so that load affects all of them, and print medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", nargs="?")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    cases = dict(CASES)
    if options.trace is not None:
        for words in READING:
            cases[f"stepscope {' '.join(words)} TRACE"] = ["-m", "stepscope", *words, options.trace]
            run(cases[f"stepscope {' '.join(words)} TRACE"])
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    for _ in range(options.rounds):
        for name, arguments in cases.items():
            times[name].append(run(arguments))
    bare = statistics.median(processor for _, processor in times["python -c pass"])
    print(f"{'':32}{'median':>10}{'fastest':>10}{'processor':>12}{'× bare python':>16}")
    for name, found in times.items():
        seconds, processor = zip(*found, strict=True)
        median = statistics.median(processor)
        print(
            f"{name:32}{statistics.median(seconds):>8.3f} s{min(seconds):>8.3f} s{median:>10.3f} s"
            f"{median / bare:>15.1f}×"
        )


if __name__ == "__main__":
    main()
