"""What `stepscope try` promises and measures on trainings with a plant, beside the fix by hand.

Eight trainings have something wrong, two are healthy. Each is tried as a user would try it; the
same training with the fix written into it runs in turns with the training as it is, without
Stepscope. Times are changes of the step.

    python benchmarks/trials.py               # about 10 minutes on two idle CPUs
    python benchmarks/trials.py --load 3      # beside three busy programs
    python benchmarks/trials.py --only collector,zeros

    by hand     the fixed script's step against that of the script as it is, in processes in turns
    promised    what the diagnosis promises for the fix
    measured    what `try` measured for it, with the 95% interval
    answer      right: the planted fix is the one to keep, or a training gets none that is healthy
                or whose fix by hand gains nothing here (an allocator may make it slower);
                open: no fix is recommended, and `try` says that it cannot tell; wrong: the rest
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]

if TYPE_CHECKING:
    from stepscope.opening.trials import TrialsRecord

STEPS, WARM_UP = 40, 8
"""Of each process, by hand, too. An epoch of the training with short epochs has 8 steps."""
HEAD = """
import gc, logging, os, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
torch.set_num_threads(1)
log = logging.getLogger("training")
log.addHandler(logging.FileHandler(os.devnull))
log.setLevel(logging.INFO)


class Samples(Dataset):
    def __init__(self, read_s=0.0, number=100_000, width=512):
        self.read_s, self.number, self.width = read_s, number, width

    def __len__(self):
        return self.number

    def __getitem__(self, index):
        if self.read_s:
            time.sleep(self.read_s)
        return torch.full((self.width,), index % 7 / 7)


def mlp(width, depth):
    return nn.Sequential(*(m for _ in range(depth) for m in (nn.Linear(width, width), nn.ReLU())))


def train(model, optimizer, loader, zero=None, after=lambda step, loss: None):
    step = 0
    while True:
        for batch in loader:
            optimizer.zero_grad(**(zero or {}))
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            step += 1
            after(step, loss)


"""
SGD = "torch.optim.SGD(model.parameters(), lr=1e-4)"
READS = f"""
model = mlp(512, 8)
train(model, {SGD}, DataLoader(Samples(0.003), batch_size=8))
"""
COLLATE = f"""
def collate(samples):
    rows = [[0.5 * value + 1.0 if value > 0 else 0.25 * value for value in sample.tolist()]
            for sample in samples]
    return torch.tensor(rows)


model = mlp(512, 8)
train(model, {SGD}, DataLoader(Samples(), batch_size=64, collate_fn=collate))
"""
EPOCHS = f"""
model = mlp(512, 8)
train(model, {SGD}, DataLoader(Samples(number=64), batch_size=8, num_workers=2))
"""
ZEROS = f"""
model = mlp(1024, 10)
loader = DataLoader(Samples(width=1024), batch_size=4)
train(model, {SGD}, loader, dict(set_to_none=False))
"""
ITEMS = f"""
def note(step, loss):
    for name, parameter in model.named_parameters():
        for value in range(100):
            log.info("%d %s %f %f", step, name, parameter.flatten()[value].item(), loss.item())


model = mlp(512, 8)
train(model, {SGD}, DataLoader(Samples(), batch_size=64), after=note)
"""
COLLECTOR = f"""
kept = [[number] for number in range(60_000)]
model = mlp(512, 8)
train(model, {SGD}, DataLoader(Samples(), batch_size=64), after=lambda step, loss: gc.collect())
"""
LOOP = """
model = mlp(32, 150)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
train(model, optimizer, DataLoader(Samples(width=32), batch_size=8))
"""
THREADS = f"""
torch.set_num_threads(8 * os.cpu_count())
model = mlp(512, 8)
train(model, {SGD}, DataLoader(Samples(), batch_size=64))
"""
HEALTHY = f"""
model = mlp(768, 6)
train(model, {SGD}, DataLoader(Samples(width=768), batch_size=32))
"""
FED = f"""
model = mlp(512, 8)
loader = DataLoader(Samples(0.0005), batch_size=16, num_workers=1, persistent_workers=True)
train(model, {SGD}, loader)
"""


@dataclass(frozen=True)
class Plant:
    """A training.

    Attributes:
        name: What is planted.
        text: The training, after `HEAD`.
        fix: The fix of `try` for it; empty if there is none.
        by_hand: What the fix by hand replaces by what; empty in a healthy training.
    """

    name: str
    text: str
    fix: str = ""
    by_hand: tuple[str, str] = ("", "")

    @property
    def fixed(self) -> str:
        """The training with its fix."""
        if self.by_hand[0] not in self.text:
            raise ValueError(f"{self.name}: no {self.by_hand[0]!r} to replace")
        return self.text.replace(*self.by_hand)


PLANTS = (
    Plant("reads", READS, "loader-workers", ("batch_size=8", "batch_size=8, num_workers=2")),
    Plant("collate", COLLATE, "loader-workers", ("batch_size=64", "batch_size=64, num_workers=1")),
    Plant(
        "epochs",
        EPOCHS,
        "persistent-workers",
        ("num_workers=2", "num_workers=2, persistent_workers=True"),
    ),
    Plant("zeros", ZEROS, "zero-grad-none", (", dict(set_to_none=False)", "")),
    Plant("items", ITEMS, "", (", after=note", "")),
    Plant("collector", COLLECTOR, "rare-gc", (", after=lambda step, loss: gc.collect()", "")),
    Plant("loop", LOOP, "fused-optimizer", ("foreach=False", "fused=True")),
    Plant("threads", THREADS, "threads", ("8 * os.cpu_count()", "os.cpu_count()")),
    Plant("healthy", HEALTHY),
    Plant("fed by a worker", FED),
)
COLUMNS = ("Training", "Step", "By hand", "Promised", "Measured", "95% interval", "Answer", "Says")


def main() -> None:
    """Try each training, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--load", type=int, default=0, metavar="N", help="busy programs beside it")
    parser.add_argument("--only", default="", help="names of trainings, separated by commas")
    parser.add_argument("--turns", type=int, default=2, help="processes of each script by hand")
    parser.add_argument("--budget", type=float, default=90.0, help="seconds of each try")
    options = parser.parse_args()
    from tests.support.busy_programs import busy_programs

    os.environ["PYTHONPATH"] = str(ROOT / "src")  # for the processes of the trainings
    wanted = [name for name in options.only.split(",") if name]
    if unknown := set(wanted) - {plant.name for plant in PLANTS}:
        parser.error(f"no training {', '.join(sorted(unknown))}")
    print(f"| {' | '.join(COLUMNS)} |")
    print("|---|--:|--:|--:|--:|--:|---|---|")
    begun, answers = time.monotonic(), []
    with busy_programs(options.load) if options.load else contextlib.nullcontext():
        for plant in PLANTS:
            if not wanted or plant.name in wanted:
                row = _row(plant, options.turns, options.budget)
                answers.append(row[-2])
                print(f"| {' | '.join(row)} |", flush=True)
    counts = ", ".join(f"{answers.count(one)} {one}" for one in ("right", "open", "wrong"))
    print(f"\n{counts}; {(time.monotonic() - begun) / 60:.1f} minutes")


def _row(plant: Plant, turns: int, budget_s: float) -> tuple[str, ...]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        step_s, by_hand = _by_hand(plant, folder, turns)
        record = _tried(plant, folder, budget_s)
    if isinstance(record, str):
        return plant.name, f"{1e3 * step_s:.1f} ms", _change(by_hand), "", "", "", "open", record
    promised, trial = _promise(plant, record)
    low, high = (None, None) if trial is None else (trial.ratio_low, trial.ratio_high)
    return (
        plant.name,
        f"{1e3 * step_s:.1f} ms",
        _change(by_hand),
        _change(promised),
        _change(None if trial is None else trial.ratio),
        "" if low is None else f"{_change(low)} to {_change(high)}",
        _answer(plant.fix if by_hand is None or by_hand < 1 else "", record),
        record.verdict.replace("|", "/"),
    )


def _promise(plant: Plant, record: TrialsRecord) -> tuple[float | None, Any]:
    """What is promised for a plant, and its trial; without a fix, the best promise of a finding."""
    if plant.fix:
        trial = next((one for one in record.trials if one.name == plant.fix), None)
        return (None if trial is None else trial.promised_ratio), trial
    found = [one.promised_ratio for one in record.untried if one.promised_ratio is not None]
    return min(found, default=None), None


def _answer(fix: str, record: TrialsRecord) -> str:
    if record.best == fix:
        is_told = bool(fix) or not record.verdict.startswith("no clear answer")
        return "right" if is_told else "open"
    # With another that helps, too.
    if fix and fix in record.best.split(" + "):
        return "right"
    is_open = not record.best and record.verdict.startswith("no clear answer")
    return "open" if is_open else "wrong"


def _change(ratio: float | None) -> str:
    return "" if ratio is None else f"{100 * (ratio - 1):+.1f}%".replace("-", "−")


def _tried(plant: Plant, folder: Path, budget_s: float) -> TrialsRecord | str:
    """What `try` says of a training; or, as text, why it says nothing."""
    from tests.support.folders import within

    from stepscope.errors import StepscopeError
    from stepscope.trial.attempts import Narration
    from stepscope.trial.experiment import Request, try_fixes

    (folder / "train.py").write_text(HEAD + plant.text)
    command = (sys.executable, "train.py")
    with within(folder):
        request = Request(command, folder / "scratch", STEPS, budget_s)
        try:
            return try_fixes(request, Narration(lambda _line: None))
        except StepscopeError as error:
            return str(error)


# -- by hand ---------------------------------------------------------------------------------------

TIMER = f"""
import json, time
from torch.optim.optimizer import register_optimizer_step_post_hook

ends = []


def on_step(*of_the_optimizer):
    ends.append(time.perf_counter())
    if len(ends) == {STEPS}:
        print(json.dumps(ends), flush=True)
        raise SystemExit


register_optimizer_step_post_hook(on_step)
"""


def _by_hand(plant: Plant, folder: Path, turns: int) -> tuple[float, float | None]:
    """The step in seconds of a training as it is, and the fixed step as a share of it."""
    texts = [plant.text] if not plant.by_hand[0] else [plant.text, plant.fixed]
    found = [[_mean_step_s(text, folder) for text in texts] for _ in range(turns)]
    means = [statistics.fmean(side) for side in zip(*found, strict=True)]
    return means[0], means[1] / means[0] if len(means) > 1 else None


def _mean_step_s(text: str, folder: Path) -> float:
    """The mean step of a training in a process of its own, after the warm-up."""
    script = folder / "by_hand.py"
    script.write_text(HEAD + TIMER + text)
    done = subprocess.run(
        [sys.executable, str(script)], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return _mean(json.loads(done.stdout.splitlines()[-1]))


def _mean(ends: Sequence[float]) -> float:
    steps = [end - start for start, end in itertools.pairwise(ends)]
    return statistics.fmean(steps[WARM_UP - 1 :])


if __name__ == "__main__":
    main()
