"""Savings of trainings with several causes at once, against the same trainings without the cause.

Everything about a training is chosen at random, from a seed; the simulated device gives the step
with and without each cause. What is recorded is the end of a longer run, which begins either while
the device is busy or, as where the recorder held the host up, while it is idle.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from tests.support.gpu_trace import GpuTrace, us
from tests.support.planted import GEMM, MM, SMALL, dump

from stepscope.advice.diagnosis import diagnose
from stepscope.opening.reader import open_run

LEAD_IN = 4
SIMULATED = (
    "allocator-churn",
    "cpu-bound-python",
    "exposed-communication",
    "garbage-collector",
    "input-bound",
    "synchronisation",
)


@dataclass(frozen=True)
class Training:
    """What a step consists of; times are in microseconds, and 0 leaves the part out."""

    seed: int
    steps: int
    layers: int
    kernels: int
    kernel: float
    dispatch: float
    wait: float
    python: float
    collector: float
    collective: float
    waits_for_collectives: bool
    losses_read: int
    reads_last_loss: bool
    frees: bool
    small_kernels: int
    sync_records: bool


def chosen(seed: int) -> Training:
    """A training at random."""
    dice = random.Random(seed)
    layers = dice.choice((4, 8, 16))
    return Training(
        seed=seed,
        steps=dice.choice((2, 3, 5)),
        layers=layers,
        kernels=dice.choice((1, 3, 6)),
        kernel=dice.choice((8, 30, 100, 400)),
        dispatch=dice.choice((4, 15, 40)),
        wait=dice.choice((0, dice.uniform(100, 30_000))),
        python=dice.choice((0, dice.uniform(200, 10_000))),
        collector=dice.choice((0, 0, dice.uniform(500, 8_000))),
        collective=dice.choice((0, dice.uniform(50, 3_000))),
        waits_for_collectives=dice.random() < 0.4,
        losses_read=dice.choice((0, 1, layers)),
        reads_last_loss=dice.random() < 0.4,
        frees=dice.random() < 0.3,
        small_kernels=dice.choice((0, 200)),
        sync_records=dice.random() < 0.5,
    )


def run(training: Training, *, without: str = "", starts_idle: bool = False) -> GpuTrace:
    """The recorded steps of the training, without one cause."""
    t = GpuTrace(
        memory_bytes=80 << 30,
        sync_records=training.sync_records,
        world_size=8 if training.collective else 1,
    )
    recorded_from = 0
    t.memory(55 << 30)
    for number in range(LEAD_IN + training.steps):
        if number == LEAD_IN:
            if starts_idle:
                t.sync()
            recorded_from = t.now
        with t.step():
            _step(t, training, without)
    t.sync()
    t.events = [event for event in t.events if event["ph"] == "i" or event["ts"] >= recorded_from]
    return t


def _step(t: GpuTrace, training: Training, without: str) -> None:
    if training.wait:
        t.data_wait(us(30 if without == "input-bound" else training.wait))
    if without != "cpu-bound-python":
        t.python(us(training.python))
    for layer in range(training.layers):
        _kernels(t, training, training.kernel)
        if layer < training.losses_read:
            _read_loss(t, without)
    for _ in range(training.small_kernels):
        t.op("aten::add", after=us(1)).launch(SMALL, us(5))
    if training.collector and without != "garbage-collector":
        t.gc_pause(us(training.collector))
    moment = None
    with t.thread():
        for _ in range(training.layers):
            with t.op("autograd::engine::evaluate_function: MmBackward0", after=us(2)):
                _kernels(t, training, 2 * training.kernel)
            if training.collective:
                length = 1 if without == "exposed-communication" else training.collective
                moment = t.collective("all_reduce", 64 << 20, us(length))
                if training.waits_for_collectives:
                    t.wait_collective(moment)
    if moment is not None:
        t.wait_collective(moment)
    if training.reads_last_loss:
        _read_loss(t, without)
    if training.frees and without != "allocator-churn":
        t.free(1 << 30, us(200))
        t.malloc(1 << 30, us(300))
    with t.annotate("Optimizer.step#AdamW.step"):
        t.op("aten::_fused_adamw_").launch(
            "void at::native::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata>", us(300)
        )


def _kernels(t: GpuTrace, training: Training, length: float) -> None:
    for _ in range(training.kernels):
        t.op("aten::mm", **MM, before=us(training.dispatch)).launch(GEMM, us(length))


def _read_loss(t: GpuTrace, without: str) -> None:
    if without != "synchronisation":
        t.item()
        return
    with t.op("aten::item"), t.op("aten::_local_scalar_dense"):
        t.copy("DtoH", 4, 1_500, blocking=False)


def step_of(t: GpuTrace) -> float:
    """The time between the ends of two of the recorded steps' GPU work, on average."""
    ends: dict[int, int] = {}
    for work in t.work:
        if work.step is not None:
            ends[work.step] = max(ends.get(work.step, 0), work.end_ns)
    last = max(ends)
    return (ends[last] - ends[LEAD_IN - 1]) / (last - LEAD_IN + 1)


@pytest.mark.slow
@pytest.mark.parametrize("starts_idle", [False, True], ids=["busy", "idle"])
@pytest.mark.parametrize("seeds", [range(first, first + 10) for first in range(0, 40, 10)], ids=str)
def test_what_a_finding_saves_is_what_the_training_takes_less(tmp_path, seeds, starts_idle):
    path = tmp_path / "trace.pt.trace.json"
    judged = set()
    wrong = []
    for seed in seeds:
        training = chosen(seed)
        now_ns = step_of(run(training))
        path.write_bytes(dump(run(training, starts_idle=starts_idle)))
        for finding in diagnose(open_run(str(path))).findings:
            if finding.id not in SIMULATED or finding.saving_ns is None:
                continue
            judged.add(finding.id)
            real_ns = now_ns - step_of(run(training, without=finding.id))
            if abs(finding.saving_ns - real_ns) > max(0.05 * now_ns, 250_000):
                wrong.append((training, finding.id, finding.saving_ns, round(real_ns)))
    assert not wrong
    assert len(judged) >= 4
