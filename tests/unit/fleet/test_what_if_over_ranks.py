"""What-if over the ranks of a pipeline-parallel job."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.pipelines import FORWARD, MILLISECOND, Job, step_times, table_of

from stepscope.errors import UnreadableInputError
from stepscope.fleet.what_if.cause import (
    MICRO_BATCHES,
    STAGES,
    TRANSFERS,
    WORKERS,
    find_causes,
    slow_workers,
)
from stepscope.fleet.what_if.operations import INCOMPLETE, operations_of, read_operations
from stepscope.fleet.what_if.pipeline import pipeline_of
from stepscope.fleet.what_if.program import Program
from stepscope.fleet.what_if.slowdown import Replays, find_slowdown


def noisy(seed: int, spread: float = 0.02):  # type: ignore[no-untyped-def]
    """Computations of 10 and 20 ms, each a little different, the same for the same seed."""

    def compute_ns(step: int, replica: int, stage: int, way: str, batch: int) -> int:
        dice = random.Random(f"{seed} {step} {replica} {stage} {way} {batch}")
        return round((10 if way == FORWARD else 20) * MILLISECOND * dice.uniform(1, 1 + spread))

    return compute_ns


@settings(max_examples=25, deadline=None)
@given(
    replicas=st.integers(1, 3),
    stages=st.integers(1, 4),
    micro_batches=st.integers(1, 6),
    chunks=st.integers(1, 2),
    seed=st.integers(0, 10_000),
)
def test_replaying_what_was_recorded_gives_what_was_recorded(
    replicas: int, stages: int, micro_batches: int, chunks: int, seed: int
) -> None:
    job = Job(
        replicas,
        stages,
        micro_batches,
        chunks if stages > 1 else 1,
        2,
        compute_ns=noisy(seed, 1.5),
        move_ns=lambda step, replica, kind: 100_000 * (1 + (seed + step) % 7),
    )
    table = table_of(job)
    replays = Replays(operations_of(table))
    recorded = list(step_times(table).values())
    # The simulation has no launch delays, as the replay has none.
    assert replays.step_times(replays.actual_ns).tolist() == pytest.approx(recorded, abs=20)
    assert not replays.left_out


def test_delays_of_launches_are_no_part_of_the_slowdown() -> None:
    table = table_of(Job())
    step = pl.col("step") == 1
    # Everything of one step after its first gather comes 30 ms late: the host was late.
    late = step & ~(pl.col("optype") == "params-all-gather")
    table = table.with_columns(
        start_ts=pl.when(late).then(pl.col("start_ts") + 0.03).otherwise("start_ts")
    )
    result = find_slowdown(Replays(operations_of(table)))
    row = result.steps.row(1, named=True)
    assert row["recorded_ns"] - row["actual_ns"] == pytest.approx(30 * MILLISECOND, abs=50)
    assert result.slowdown == pytest.approx(1)


def test_a_slow_worker_is_named_with_its_ratio() -> None:
    def compute_ns(step: int, replica: int, stage: int, way: str, batch: int) -> int:
        usual = noisy(1)(step, replica, stage, way, batch)
        return round(usual * 1.7) if (replica, stage) == (2, 1) else usual

    replays = Replays(operations_of(table_of(Job(replicas=4, compute_ns=compute_ns))))
    slowdown = find_slowdown(replays)
    assert slowdown.worst_workers == ((2, 1),)
    assert slowdown.workers.row(0, named=True)["rank"] == 2 * 4 + 1
    causes = find_causes(replays, slowdown)
    assert causes.all[0].name == WORKERS
    assert causes.all[0].share > 0.9
    assert "rank 9 (data-parallel rank 2, stage 1) 1.7" in causes.verdict
    slow = slow_workers(replays.operations, replays.actual_ns)
    assert slow.select("replica", "stage").rows() == [(2, 1)]
    assert slow["ratio"][0] == pytest.approx(1.7, rel=0.02)


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_a_long_last_stage_is_no_slow_worker(replicas: int) -> None:
    def compute_ns(step: int, replica: int, stage: int, way: str, batch: int) -> int:
        return round(noisy(2)(step, replica, stage, way, batch) * (1.5 if stage == 3 else 1))

    replays = Replays(operations_of(table_of(Job(replicas=replicas, compute_ns=compute_ns))))
    slowdown = find_slowdown(replays)
    causes = find_causes(replays, slowdown)
    assert causes.all[0].name == STAGES
    assert "the last stage computes 1.5" in causes.verdict
    assert causes.all[0].share > 0.8
    assert slowdown.by_stage["stage"][0] == 3


def test_uneven_micro_batches_are_told_by_their_lengths() -> None:
    def compute_ns(step: int, replica: int, stage: int, way: str, batch: int) -> int:
        length = random.Random(f"{step} {replica} {batch}").choice([0.5, 0.7, 1.0, 2.5])
        return round(noisy(3)(step, replica, stage, way, batch) * length)

    replays = Replays(operations_of(table_of(Job(replicas=4, steps=6, compute_ns=compute_ns))))
    causes = find_causes(replays, find_slowdown(replays))
    assert causes.all[0].name == MICRO_BATCHES
    assert "sequences of uneven length" in causes.verdict


def test_independent_noise_is_not_put_down_to_lengths() -> None:
    replays = Replays(operations_of(table_of(Job(replicas=4, compute_ns=noisy(4, spread=3)))))
    causes = find_causes(replays, find_slowdown(replays))
    assert causes.all[0].name == MICRO_BATCHES
    assert "independently" in causes.verdict


def test_slow_transfers_of_some_steps() -> None:
    def move_ns(step: int, replica: int, kind: str) -> int:
        is_slow = kind == "grads-reduce-scatter" and step % 3 == 0
        return 200 * MILLISECOND if is_slow else MILLISECOND

    job = Job(steps=6, compute_ns=noisy(5), move_ns=move_ns)
    replays = Replays(operations_of(table_of(job)))
    slowdown = find_slowdown(replays)
    causes = find_causes(replays, slowdown)
    assert causes.all[0].name == TRANSFERS
    assert "grads-reduce-scatter" in causes.verdict
    assert slowdown.by_kind["kind"][0] == "grads-reduce-scatter"


def test_a_healthy_job_accuses_nobody() -> None:
    replays = Replays(operations_of(table_of(Job(compute_ns=noisy(6)))))
    causes = find_causes(replays, find_slowdown(replays))
    assert not causes.all
    assert causes.verdict.startswith("no straggler")


def test_transfers_that_move_nothing_meet_nobody() -> None:
    table = table_of(Job(stages=2, micro_batches=3, steps=1))
    idle = table.filter(
        (pl.col("optype") == "forward-recv") & (pl.col("seq_id") == 2)
    ).with_columns(seq_id=pl.lit(3, pl.Int64), start_ts=pl.col("start_ts") + 1.0)
    # The recorder notes a receive long after the last forward computation.
    with_idle = pl.concat([table, idle])
    replays = Replays(operations_of(with_idle))
    assert not replays.left_out
    usual = Replays(operations_of(table))
    assert replays.actual_ns.shape[2] == usual.actual_ns.shape[2] + 1


def test_incomplete_steps_are_left_out_and_counted() -> None:
    table = table_of(Job(steps=4))
    broken = table.filter(
        ~(
            (pl.col("step") == 2)
            & (pl.col("optype") == "backward-compute")
            & (pl.col("seq_id") == 3)
        )
    )
    operations = operations_of(broken)
    assert operations.steps.tolist() == [0, 1, 3]
    assert operations.left_out == {INCOMPLETE: 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.drop("stage", "seq_id"), "columns stage, seq_id are missing"),
        (lambda table: table.clear(), "no rows"),
        (lambda table: table.with_columns(duration=pl.lit(-1.0)), "no valid rank"),
        (lambda table: table.with_columns(start_ts=pl.lit("soon")), "wrong type"),
        (lambda table: table.with_columns(stage=pl.col("stage") + 1), "do not count up from 0"),
        (
            lambda table: table.filter((pl.col("dp_rank") == 0) | (pl.col("seq_id") < 5)),
            "nothing to replay",
        ),
    ],
)
def test_a_table_that_cannot_be_replayed_is_refused(change, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UnreadableInputError, match=message):
        Replays(operations_of(change(table_of(Job(steps=1)))))


def test_files_that_are_no_tables_are_refused(tmp_path: Path) -> None:
    bad = tmp_path / "trace.parquet"
    bad.write_bytes(b"not parquet")
    with pytest.raises(UnreadableInputError, match=r"trace\.parquet"):
        read_operations(bad)


def test_overlapped_reductions_wait_for_their_own_chunk() -> None:
    job = Job(stages=2, micro_batches=4, steps=1)
    table = table_of(job)
    rest = table.filter(pl.col("optype") == "optimizer-clip-main-grad").with_columns(
        optype=pl.lit("separate-grads-all-reduce"),
        start_ts=pl.col("start_ts") - 0.0005,
        duration=pl.lit(0.0002),
    )
    overlapped = Replays(operations_of(pl.concat([table, rest])))
    kinds = overlapped.operations.table["kind"].to_list()
    program, _ = pipeline_of(overlapped.operations)
    for stage in (0, 1):
        of_stage = overlapped.operations.table.filter(pl.col("stage") == stage)
        reduction = of_stage.filter(pl.col("kind") == "grads-reduce-scatter")["operation"][0]
        (node,) = _before(program, int(program.node[0, reduction]))
        is_before = np.isin(program.node, _before(program, node))
        before = sorted({kinds[operation] for operation in np.nonzero(is_before)[1]})
        assert before == ["backward-compute", "params-all-gather"]


def _before(program: Program, node: int) -> list[int]:
    """The nodes that one depends on."""
    first, last = program.first_edge[node : node + 2]
    return [int(source) for source in program.source[first:last]]
