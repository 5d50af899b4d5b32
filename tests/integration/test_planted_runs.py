"""Real trainings on this machine: plant a bottleneck, predict its saving, fix it, measure.

Planted and fixed steps take turns in one window (of the ranks' training: windows), so that both
see the same machine and are recorded alike; the median over several windows counts.
"""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.project import ROOT

from stepscope.advice.diagnosis import diagnose
from stepscope.advice.thresholds import Thresholds
from stepscope.run.reader import open_run

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow

ROUNDS = 5
STEPS = 10
HALF = Thresholds(recomputation=0.05)
"""Only every second step has something planted, so that shares are half as large."""


class Training:
    """A small network on the CPU, one thread, about 40 ms a step."""

    def __init__(self, checkpointed: bool = False):
        torch.manual_seed(0)
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(
                torch.nn.Linear(512, 1024),
                torch.nn.GELU(),
                torch.nn.Linear(1024, 1024),
                torch.nn.GELU(),
                torch.nn.Linear(1024, 512),
            )
            for _ in range(3)
        )
        self.optimizer = torch.optim.SGD(self.blocks.parameters(), lr=1e-3)
        self.checkpointed = checkpointed

    def step(self, batch):
        from torch.utils.checkpoint import checkpoint

        hidden = batch.requires_grad_()
        for block in self.blocks:
            if self.checkpointed:
                hidden = checkpoint(block, hidden, use_reentrant=False)
            else:
                hidden = block(hidden)
        loss = hidden.square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Samples(torch.utils.data.Dataset):
    """Samples that take their time to arrive, as from a slow disk."""

    def __init__(self, delay_s: float):
        self.delay_s = delay_s

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        if self.delay_s:
            time.sleep(self.delay_s)
        return torch.full((512,), float(index % 7))


def batches(delay_s: float = 0.0):
    return iter(torch.utils.data.DataLoader(Samples(delay_s), batch_size=64))


def record(step: Callable[[], None], path: Path) -> None:
    """One window of steps, in a file."""
    schedule = torch.profiler.schedule(wait=0, warmup=2, active=STEPS, repeat=1)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=schedule,
        on_trace_ready=lambda p: p.export_chrome_trace(str(path)),
        record_shapes=True,
    ) as profiler:
        for _ in range(STEPS + 2):
            step()
            profiler.step()


def hold_to_account(planted, fixed, rule, tmp_path):
    """Planted and fixed steps take turns; hold the finding's promise against the fixed ones.

    Half of the steps have nothing to fix, so the promised mean step is the mean of theirs and of
    what the planted ones would take.
    """
    before, predicted, after = [], [], []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for number in range(ROUNDS):
            path = tmp_path / f"{number}.json"
            turns = itertools.cycle((planted, fixed))
            record(lambda turns=turns: next(turns)(), path)
            judged = diagnose(open_run(str(path)), HALF)
            findings = [finding for finding in judged.findings if finding.id == rule]
            assert findings, f"{rule} not found: {judged.verdict}"
            wall_ns = judged.ranks[0].host.steps["wall_ns"]
            after.append(statistics.mean(wall_ns[1::2]))
            before.append(statistics.mean(wall_ns[::2]))
            predicted.append(2 * findings[0].predicted_step_ns - after[-1])
    finally:
        torch.set_num_threads(threads)
    report(rule, before, predicted, after)


def report(rule, before, predicted, after):
    was, promised, is_now = (statistics.median(times) for times in (before, predicted, after))
    error = abs(promised - is_now) / is_now
    print(
        f"\n{rule}: {was / 1e6:.1f} ms, predicted {promised / 1e6:.1f} ms, measured "
        f"{is_now / 1e6:.1f} ms, off by {error:.1%}"
    )
    assert was > 1.15 * is_now, "nothing worth fixing was planted"
    assert error <= 0.2


def test_a_slow_loader(tmp_path):
    training = Training()
    slow, fast = batches(0.0006), batches()
    hold_to_account(
        lambda: training.step(next(slow)),
        lambda: training.step(next(fast)),
        "input-bound",
        tmp_path,
    )


def test_a_python_loop_in_the_step(tmp_path):
    training, loader = Training(), batches()

    def planted():
        training.step(next(loader))
        total = 0
        for number in range(800_000):
            total += number % 7

    hold_to_account(planted, lambda: training.step(next(loader)), "cpu-bound-python", tmp_path)


def test_a_wait_for_another_thread(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    training, loader = Training(), batches()
    with ThreadPoolExecutor(1) as pool:

        def planted():
            training.step(next(loader))
            pool.submit(time.sleep, 0.03).result()

        hold_to_account(planted, lambda: training.step(next(loader)), "cpu-bound-python", tmp_path)


def test_recomputation(tmp_path):
    again, once, loader = Training(checkpointed=True), Training(), batches()
    hold_to_account(
        lambda: again.step(next(loader)),
        lambda: once.step(next(loader)),
        "heavy-recomputation",
        tmp_path,
    )


def test_recompiling_every_step(tmp_path):
    training, loader = Training(), batches()

    def compiled():
        # A function of its own, as where torch.compile is called on a lambda within the loop.
        scope = {"block": training.blocks[0]}
        exec("def prepare(batch):\n    return block(batch)", scope)
        return torch.compile(scope["prepare"], backend="eager")

    def step(prepare):
        training.step(prepare(next(loader)).detach())

    once = compiled()
    hold_to_account(lambda: step(compiled()), lambda: step(once), "recompilation", tmp_path)


RANK = """
import itertools, sys, time, torch, torch.distributed as dist
from pathlib import Path
from tests.integration.test_planted_runs import Training, batches, record
folder, rank = Path(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
training, loader = Training(), batches()
for block in training.blocks:
    for parameter in block.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad))
def step(delay):
    if delay:
        time.sleep(delay)
    training.step(next(loader))
for number in range(3):
    turns = itertools.cycle((0.2 if rank == 1 else 0.0, 0.0))
    record(lambda: step(next(turns)), folder / f"{number}_rank{rank}.json")
dist.destroy_process_group()
"""


def test_a_slow_rank_under_gloo(tmp_path):
    """The slow rank's own finding promises what all ranks gain when it is fixed.

    It is slow in every second step, as in `hold_to_account`.
    """
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANK, str(tmp_path), str(rank)], env=environment)
        for rank in range(2)
    ]
    assert [process.wait(timeout=250) for process in ranks] == [0, 0]
    before, predicted, after = [], [], []
    for number in range(3):
        judged = [
            diagnose(open_run(str(tmp_path / f"{number}_rank{rank}.json")), HALF)
            for rank in range(2)
        ]
        finding = next(f for f in judged[1].findings if f.id == "cpu-bound-python")
        # The other rank waits inside its backward: it has no Python of its own to blame.
        others = [f.saving_ns for f in judged[0].findings if f.id == "cpu-bound-python"]
        assert finding.saving_ns > 0.075e9 > 2 * max(others, default=0)
        wall_ns = judged[0].ranks[0].host.steps["wall_ns"]
        after.append(statistics.mean(wall_ns[1::2]))
        before.append(statistics.mean(wall_ns[::2]))
        predicted.append(2 * finding.predicted_step_ns - after[-1])
    report("a slow rank", before, predicted, after)
