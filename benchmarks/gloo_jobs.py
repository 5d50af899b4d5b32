"""Whether reports accuse the right rank of real jobs: DDP on four processes over gloo.

    python benchmarks/gloo_jobs.py                              # 20 healthy jobs, 3 of each plant
    python benchmarks/gloo_jobs.py --healthy 2 --each 1         # a few
    python benchmarks/gloo_jobs.py --out jobs.jsonl             # goes on if interrupted

Each job is recorded by `stepscope run -- torchrun` as a user would, and its run is diagnosed. A
healthy one and one of unequal work accuse nobody; of the others the planted rank alone is named,
and the report says why. Four ranks need four idle CPUs to be equal: on fewer, the machine adds
waits of its own, which no rank is to be accused of either.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if __name__ in ("__main__", "__mp_main__"):
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]

TRAINING = """
import gc, sys, time
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

plant, steps = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
distributed.init_process_group("gloo")
rank = distributed.get_rank()
torch.manual_seed(rank)


class Samples(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        if plant == "input" and rank == 2:
            time.sleep(0.001)
        return torch.randn(256)


model = nn.Sequential(nn.Linear(256, 512), *(nn.Linear(512, 512) for _ in range(4)))
trained = DistributedDataParallel(model)
optimizer = torch.optim.SGD(trained.parameters(), lr=1e-4)
kept = [[number] for number in range(150_000)] if plant == "collector" and rank == 3 else []
more = torch.randn(512, 512)
batches = iter(DataLoader(Samples(), batch_size=32))
for step in range(steps):
    batch = next(batches)
    if plant == "imbalance":
        batch = batch.repeat(int(torch.randint(1, 9, ())), 1)
    if plant == "nth" and rank == 0 and step % 4 == 3:
        time.sleep(0.08)
    if plant == "compute" and rank == 1:
        for _ in range(12):
            more @ more
    if plant == "collector" and rank == 3:
        gc.collect()
    trained(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
distributed.destroy_process_group()
"""
CULPRITS: dict[str, tuple[int, ...]] = {
    "healthy": (), "imbalance": (), "input": (2,), "compute": (1,), "collector": (3,), "nth": (0,),
}  # fmt: skip
CAUSES = {"input": "input", "compute": "compute|comput|forward", "collector": "garbage|collector"}
STEPS, RANKS = 80, 4


@dataclass(frozen=True)
class Outcome:
    """A job, diagnosed."""

    plant: str
    number: int
    stragglers: tuple[int, ...]
    is_right: bool
    verdict: str


def judge(work: tuple[str, int]) -> Outcome:
    """Run, record and diagnose one job."""
    from accusations import ranks_in

    from stepscope.advice.diagnosis import diagnose
    from stepscope.opening.reader import open_run

    plant, number = work
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(TRAINING)
        recorded = "-m stepscope run --no-report --output-dir runs --"
        job = f"-m torch.distributed.run --standalone --nproc-per-node={RANKS} train.py"
        python = sys.executable
        command = [python, *recorded.split(), python, *job.split(), plant, str(STEPS)]
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(done.stderr)
        (run,) = (folder / "runs").iterdir()
        diagnosis = diagnose(open_run(str(run)))
    late = [one for one in diagnosis.findings if one.id == "late-rank"]
    stragglers = tuple(
        rank
        for one in late
        for item in one.evidence
        if item.label == "who comes late"
        for rank in ranks_in(str(item.value))
    )
    why = " ".join((diagnosis.verdict, *(one.title for one in late)))
    is_right = set(stragglers) == set(CULPRITS[plant])
    is_right = is_right and bool(re.search(CAUSES.get(plant, ""), why))
    return Outcome(plant, number, stragglers, is_right, diagnosis.verdict)


def main() -> None:
    """Command line."""
    from tests.support import in_pieces

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--healthy", type=int, default=20, help="healthy jobs")
    parser.add_argument("--each", type=int, default=3, help="jobs of each plant")
    parser.add_argument("--only", choices=CULPRITS, help="this plant only")
    parser.add_argument("--out", type=Path, help="append each job; those in it are not redone")
    asked = parser.parse_args()
    numbers = {one: asked.healthy if one == "healthy" else asked.each for one in CULPRITS}
    wanted = [
        (plant, number)
        for plant, count in numbers.items()
        if asked.only in (None, plant)
        for number in range(count)
    ]
    lines = in_pieces.read_lines(asked.out) if asked.out else ()
    known = [Outcome(**{**line, "accused": tuple(line["accused"])}) for line in lines]
    known = [one for one in known if (one.plant, one.number) in wanted]
    missing = [one for one in wanted if one not in {(one.plant, one.number) for one in known}]
    began = time.monotonic()
    with in_pieces.own_cache():
        found = known + in_pieces.append(map(judge, missing), asked.out)
    for one in found:
        if not one.is_right:
            print(f"{one.plant} {one.number}: accused {one.stragglers}; {one.verdict}")
    print("| Plant | Jobs | Right |", "|---|--:|--:|", sep="\n")
    for plant in CULPRITS:
        right = [one.is_right for one in found if one.plant == plant]
        if right:
            print(f"| {plant} | {len(right)} | {sum(right)} |")
    print(f"\n{(time.monotonic() - began) / 60:.1f} minutes")


if __name__ == "__main__":
    main()
