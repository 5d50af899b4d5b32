"""How often `stepscope gate` fails identical versions, and how often it catches a slowdown of 10%.

Each pair is one gate: two versions of a small training in turns, each run a process of its own. The
training has 20 equal layers; the slower version has 22, so its step takes a tenth longer.

    python benchmarks/gate.py --warm                      # 40 identical pairs, 20 with a slowdown
    python benchmarks/gate.py --warm --load 3             # beside three busy programs
    python benchmarks/gate.py --warm --pairs 4 --load 3   # 4 identical pairs, 2 with a slowdown
    python benchmarks/gate.py --warm --out gates.jsonl    # goes on if interrupted

Most of a run is the start of Python and the import of torch. With `--warm`, each run is a fork of a
process that has imported torch, which takes a third of the time; runs then share the addresses of
what was imported, one of the things by which runs differ. Without it, each run is a new process.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]

LAYERS, SLOWER = 20, 22
TRAINING = """
import os, sys, torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
layers = [nn.Sequential(nn.Linear(192, 192), nn.ReLU()) for _ in range(int(sys.argv[1]))]
model = nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
batch = torch.randn(64, 192)
try:
    while True:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
finally:
    os._exit(0)  # taking down torch's modules takes as long as the training
"""
OUTCOMES = ("failed", "passed", "cannot tell")
AFTER = {"identical": LAYERS, "slower": SLOWER}


@dataclass(frozen=True)
class Gated:
    """One gate: its answer, the change that it found, and by how much its runs differ."""

    pair: str
    number: int
    outcome: str
    step: float
    spread: float


def main() -> None:
    """Run the pairs, and print the rates."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=40, help="pairs of identical versions")
    parser.add_argument("--slower", type=int, help="pairs with a slowdown  [default: half of that]")
    parser.add_argument("--load", type=int, default=0, metavar="N", help="busy programs beside it")
    parser.add_argument("--runs", type=int, default=5, help="runs of each version of a pair")
    parser.add_argument("--steps", type=int, help="steps of each run  [default: the verb's]")
    parser.add_argument("--warm", action="store_true", help="fork runs off a warm process")
    parser.add_argument("--out", type=Path, help="append each gate; those in it are not redone")
    options = parser.parse_args()
    from tests.support import in_pieces
    from tests.support.busy_programs import busy_programs
    from tests.support.warm_python import VARIABLES, warm_python

    os.environ.update(VARIABLES)
    os.environ["PYTHONPATH"] = str(ROOT / "src")  # for the processes of the trainings
    python = warm_python() if options.warm else sys.executable
    slower = options.pairs // 2 if options.slower is None else options.slower
    numbers = {"identical": options.pairs, "slower": slower}
    wanted = [(pair, number) for pair, count in numbers.items() for number in range(count)]
    lines = in_pieces.read_lines(options.out) if options.out else ()
    known = [one for line in lines if ((one := Gated(**line)).pair, one.number) in wanted]
    missing = [one for one in wanted if one not in {(one.pair, one.number) for one in known}]
    begun = time.monotonic()
    with busy_programs(options.load) if options.load else contextlib.nullcontext():
        gates = (_gate(python, *one, options.runs, options.steps) for one in missing)
        found = known + in_pieces.append(gates, options.out)
    print("| Pairs | Number | failed | passed | cannot tell | Step grew by | Runs differ by |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for pair in numbers:
        these = [one for one in found if one.pair == pair]
        counts = Counter(one.outcome for one in these)
        cells = [f"{counts[one]} ({counts[one] / max(1, len(these)):.0%})" for one in OUTCOMES]
        grew = _middle([one.step for one in these])
        spread = _middle([one.spread for one in these])
        print(f"| {pair} | {len(these)} | {' | '.join(cells)} | {grew} | {spread} |")
    print(f"\n{(time.monotonic() - begun) / 60:.1f} minutes")


def _middle(shares: list[float]) -> str:
    return f"{sorted(shares)[len(shares) // 2]:.1%}" if shares else "–"


def _gate(python: str, pair: str, number: int, runs: int, steps: int | None) -> Gated:
    """Gate two versions."""
    from tests.support.folders import within

    from stepscope.commands.main import main as stepscope

    with tempfile.TemporaryDirectory() as folder, within(Path(folder)):
        Path("train.py").write_text(TRAINING)
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
            code = stepscope(
                [
                    *("gate", "--format", "json", "--output", "found.json", "--budget", "2h"),
                    *("--runs", str(runs), *(() if steps is None else ("--steps", str(steps)))),
                    *(str(LAYERS), str(AFTER[pair]), "--", python, "train.py", "{version}"),
                ]
            )
        if code not in (0, 1):
            raise SystemExit(errors.getvalue())
        found = json.loads(Path("found.json").read_text())
    step = found["runs"]["step"]["share"]
    return Gated(pair, number, found["checks"][0]["outcome"], step, found["runs"]["spread"])


if __name__ == "__main__":
    main()
