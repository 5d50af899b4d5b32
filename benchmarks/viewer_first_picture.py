"""How long `stepscope view` takes to the first picture of a trace, without its store and with it.

    python benchmarks/viewer_first_picture.py TRACE [--repeats 3]

Counts from the start of the command to the moment at which everything on the screen has arrived and
is drawn, in headless Chromium with software rendering, which is already running. Cold: the store is
in an empty folder. Warm: once more, after the first viewer has kept all that it keeps there. The
system may have the file in its cache both times.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.browser import Page, browsing

SETTLED = "() => window.stepscope?.timeline?.timeline?.isSettled"


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    cores = os.cpu_count() or 1
    print(f"{given.trace.name}, {given.trace.stat().st_size / 1e9:.2f} GB; {cores} cores, load "
          f"{os.getloadavg()[0]:.1f}")  # fmt: skip
    with tempfile.TemporaryDirectory() as profile, browsing(Path(profile), 1500, 900) as new_page:
        for repeat in range(given.repeats):
            with tempfile.TemporaryDirectory() as stores:
                cold = first_picture(new_page(), given.trace, Path(stores))
                warm = first_picture(new_page(), given.trace, Path(stores))
            print(f"{repeat + 1}: cold {cold:.2f} s, warm {warm:.2f} s")


def first_picture(page: Page, trace: Path, stores: Path) -> float:
    """Seconds to the first complete picture."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "stepscope", "view", str(trace.resolve()), "--no-browser"],
        env={**os.environ, "STEPSCOPE_STORES": "cache", "STEPSCOPE_CACHE": str(stores)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        page.page.goto(process.stdout.readline().strip())
        page.until(SETTLED)
        took = time.perf_counter() - began
        page.when(lambda: any(stores.glob("*/timeline/index.json")))
        return took
    finally:
        page.page.close()
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
