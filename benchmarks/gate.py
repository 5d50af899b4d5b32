"""How often `stepscope gate` fails identical versions, and how often it catches a slowdown of 10%.

Each pair is one gate: two versions of a small training in turns, each run a process of its own. The
training has 20 equal layers; the slower version has 22, so its step takes a tenth longer. Pairs run
on the machine as it is, then beside programs that keep its CPUs busy in bursts.

    python benchmarks/gate.py
    python benchmarks/gate.py --identical 4 --slower 2 --steps 40 --only quiet
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

LAYERS, SLOWER = 20, 22
TRAINING = """
import sys, torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
layers = [nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(int(sys.argv[1]))]
model = nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
while True:
    loss = model(torch.randn(64, 512)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
LOAD = """
import random, time
while True:
    end = time.monotonic() + random.uniform(0.2, 5)
    while time.monotonic() < end:
        pass
    time.sleep(random.uniform(0.2, 5))
"""


def main() -> None:
    """Run the pairs, and print the rates."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--identical", type=int, default=40, help="pairs of identical versions")
    parser.add_argument("--slower", type=int, default=20, help="pairs with a slowdown of 10%%")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--only", choices=["quiet", "loaded"])
    options = parser.parse_args()
    print("| Machine | Pairs | Number | failed | passed | cannot tell | Runs differ by |")
    print("|---|---|--:|--:|--:|--:|--:|")
    for machine in ("quiet", "loaded"):
        if options.only not in (None, machine):
            continue
        with _load() if machine == "loaded" else contextlib.nullcontext():
            for name, number, after in (
                ("identical", options.identical, LAYERS),
                ("10% slower", options.slower, SLOWER),
            ):
                found = [_gate(after, options.runs, options.steps) for _ in range(number)]
                counts = Counter(outcome for outcome, _ in found)
                spreads = sorted(spread for _, spread in found)
                middle = f"{spreads[len(spreads) // 2]:.1%}" if spreads else "–"
                cells = [counts[one] for one in ("failed", "passed", "cannot tell")]
                row = (machine, name, number, *cells, middle)
                print(f"| {' | '.join(map(str, row))} |", flush=True)


def _gate(after: int, runs: int, steps: int) -> tuple[str, float]:
    """The answer of one gate, and by how much its runs differ."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(TRAINING)
        ended = subprocess.run(
            [
                *(sys.executable, "-m", "stepscope", "gate", "--format", "json"),
                *("--runs", str(runs), "--steps", str(steps), "--budget", "2h"),
                *(str(LAYERS), str(after), "--", sys.executable, "train.py", "{version}"),
            ],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, map(str, sys.path)))},
            check=False,
            capture_output=True,
            text=True,
        )
    if ended.returncode not in (0, 1):
        raise SystemExit(ended.stderr)
    document = json.loads(ended.stdout)
    return document["checks"][0]["outcome"], document["runs"]["spread"]


@contextlib.contextmanager
def _load() -> Iterator[None]:
    """Programs, one more than there are CPUs, that compute and rest in turns."""
    number = 1 + (os.cpu_count() or 1)
    programs = [subprocess.Popen([sys.executable, "-c", LOAD]) for _ in range(number)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


if __name__ == "__main__":
    main()
