"""How long `stepscope --help` takes, compared with bare Python and with importing numpy."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

ROUNDS = 15
CASES = {
    "python -c pass": ["-c", "pass"],
    "python -c 'import numpy'": ["-c", "import numpy"],
    "python -c 'import stepscope'": ["-c", "import stepscope"],
    "stepscope --version": ["-m", "stepscope", "--version"],
    "stepscope --help": ["-m", "stepscope", "--help"],
    "stepscope doctor --help": ["-m", "stepscope", "doctor", "--help"],
}


def main() -> None:
    """Run the cases in turn, so that load affects all of them, and print medians."""
    times: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(ROUNDS):
        for name, arguments in CASES.items():
            started = time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
            times[name].append(time.perf_counter() - started)
    bare = statistics.median(times["python -c pass"])
    print(f"{'':32}{'median':>10}{'fastest':>10}{'× bare python':>16}")
    for name, seconds in times.items():
        median = statistics.median(seconds)
        print(f"{name:32}{median:>8.3f} s{min(seconds):>8.3f} s{median / bare:>15.1f}×")


if __name__ == "__main__":
    main()
