"""Whether scraping a training's metrics makes its steps longer.

    python benchmarks/scrape.py                      # 60 s, scraped in every second block of 3 s
    python benchmarks/scrape.py --blocks 40 --rate 2

One training under `stepscope run`, one `stepscope monitor --prometheus` beside it. In turns, for a
block of seconds each, its page is read `--rate` times a second, and not at all. The ratio is that
of the medians of the two kinds of steps; its interval comes from drawing blocks at random (95 %).
Prometheus reads once in 15 to 60 s.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from stepscope.run.step_record import read_steps

TRAINING = """
import sys, time
import torch
torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(6)])
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
data = torch.randn(64, 256)
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    optimizer.zero_grad()
    model(data).square().mean().backward()
    optimizer.step()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--block-seconds", type=float, default=3.0)
    parser.add_argument("--rate", type=float, default=1.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(TRAINING)
        seconds = options.blocks * options.block_seconds
        training = subprocess.Popen(
            [sys.executable, "-m", "stepscope", "run", "--output-dir", folder, "--no-report",
             "--", sys.executable, f"{folder}/train.py", str(seconds + 20)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            record = steps_file(Path(folder), training)
            blocks, scrapes, page = in_turns(record, options)
        finally:
            training.wait()
        steps, _ = read_steps(record)
    kinds = {
        kind: [
            [step.dur_ns for step in steps if start <= step.start_ns < end]
            for start, end, is_scraped in blocks
            if is_scraped == kind
        ]
        for kind in (True, False)
    }
    chance = random.Random(0)
    drawn = sorted(
        ratio({kind: chance.choices(found, k=len(found)) for kind, found in kinds.items()})
        for _ in range(1000)
    )
    counted = sum(len(block) for found in kinds.values() for block in found)
    print(f"{counted} steps in {len(blocks)} blocks, {scrapes} scrapes of {len(page)} bytes")
    for kind, name in ((False, "not scraped"), (True, "scraped")):
        print(f"{name:12} median step {median(kinds[kind]) / 1e6:.3f} ms")
    print(f"ratio        {ratio(kinds):.4f}  (95 %: {drawn[25]:.4f} to {drawn[974]:.4f})")


def median(blocks: list[list[int]]) -> float:
    return statistics.median(step for block in blocks for step in block)


def ratio(kinds: dict[bool, list[list[int]]]) -> float:
    return median(kinds[True]) / median(kinds[False])


def steps_file(folder: Path, training: subprocess.Popen[bytes]) -> Path:
    """The step record of the run, once its training is under way."""
    while training.poll() is None:
        found = list(folder.glob("*/rank00000/steps.jsonl"))
        if found and found[0].stat().st_size:
            return found[0]
        time.sleep(0.2)
    raise SystemExit(f"the training ended early, with {training.returncode}")


def in_turns(
    record: Path, options: argparse.Namespace
) -> tuple[list[tuple[int, int, bool]], int, bytes]:
    """Blocks as start and end in ns and whether they were scraped, how often, and the last page."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monitor = subprocess.Popen(
        [sys.executable, "-m", "stepscope", "monitor", "--prometheus", str(port),
         str(record.parents[1])],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}/metrics"
    page, scrapes, blocks = b"", 0, []
    try:
        while not page:
            time.sleep(0.2)
            with contextlib.suppress(OSError):  # it does not listen yet
                page = read(url)
        for block in range(options.blocks):
            start = time.time_ns()
            end = start + int(options.block_seconds * 1e9)
            while (now := time.time_ns()) < end:
                if block % 2:
                    page = read(url)
                    scrapes += 1
                time.sleep(min(1 / options.rate, (end - now) / 1e9))
            blocks.append((start, end, bool(block % 2)))
    finally:
        monitor.terminate()
        monitor.wait()
    assert re.search(rb"^stepscope_step\w*_seconds", page, re.MULTILINE), page[:2000]
    return blocks, scrapes, page


def read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:
        found: bytes = answer.read()
    return found


if __name__ == "__main__":
    main()
