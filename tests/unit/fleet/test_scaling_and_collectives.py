"""Scaling from few ranks to many, and collectives over all ranks: planted answers."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from tests.support.gpu_trace import GpuTrace, ms

from stepscope.commands.compare import command as compare
from stepscope.commands.show import command as show
from stepscope.fleet.collectives import collectives_over_ranks
from stepscope.fleet.job import put_together, read_part
from stepscope.fleet.scaling import compare_scaling
from stepscope.trace.model import Trace


def job_of(traces: dict[int, Trace]):
    parts = [read_part(f"rank{rank}", rank, None, trace, None) for rank, trace in traces.items()]
    return put_together(parts, {})


def data_parallel(world, transfer_ms, late_rank=None, host="a", steps=4):
    """Ranks that compute 20 ms and reduce; one of them computes 10 ms longer."""
    made = {}
    for rank in range(world):
        t = GpuTrace(rank=rank, world_size=world, device=rank)
        for _ in range(steps):
            with t.step():
                extra = ms(10) if rank == late_rank else 0
                t.op("aten::mm").launch("ampere_sgemm_128x64_nn", ms(20) + extra)
                waits = ms(10) if late_rank is not None and rank != late_rank else 0
                t.collective("all_reduce", 64 << 20, ms(transfer_ms) + waits)
                t.sync()
        document = t.document()
        document["host_name"] = f"{host}{rank // 4}"
        made[rank] = (t, document)
    return made


def loaded(made):
    return job_of({rank: t.load() for rank, (t, _) in made.items()})


def test_efficiency_and_what_grew():
    few, many = loaded(data_parallel(2, 4)), loaded(data_parallel(8, 14))
    found = compare_scaling(few, many)
    assert (found.a_ranks, found.b_ranks) == (2, 8)
    # Each step grew by the ten milliseconds that the transfer takes longer.
    assert found.b_step_ns - found.a_step_ns == pytest.approx(ms(10), rel=0.02)
    assert found.weak_efficiency == pytest.approx(found.a_step_ns / found.b_step_ns)
    assert found.strong_efficiency == pytest.approx(found.weak_efficiency / 4)
    growth = {row["part"]: row for row in found.growth.iter_rows(named=True)}
    assert growth["exposed communication"]["growth_ns"] == pytest.approx(ms(10), rel=0.02)
    assert "what grew most is exposed communication: +10.0 ms" in found.verdict
    assert "in the transfers themselves. No rank takes notably longer by itself" in found.verdict
    whole = {"step", "waiting for other ranks"}
    parts = [row["growth_ns"] for part, row in growth.items() if part not in whole]
    assert sum(parts) == pytest.approx(growth["step"]["growth_ns"], abs=5)
    assert growth["waiting for other ranks"]["growth_ns"] == 0


def test_the_rank_that_grew_comes_first():
    few, many = loaded(data_parallel(2, 4)), loaded(data_parallel(8, 4, late_rank=5))
    found = compare_scaling(few, many)
    first = found.ranks.row(0, named=True)
    assert (first["rank"], first["wait_ns"]) == (5, 0)
    assert first["own_growth_ns"] == pytest.approx(ms(10), rel=0.05)
    assert found.ranks["own_growth_ns"][1] < ms(1)
    assert "mostly waiting for other ranks. 1 rank takes longer by itself" in found.verdict
    assert found.verdict.endswith("rank 5: +10.0 ms")
    growth = {row["part"]: row["growth_ns"] for row in found.growth.iter_rows(named=True)}
    # Seven of eight ranks wait ten milliseconds.
    assert growth["waiting for other ranks"] == pytest.approx(ms(10) * 7 / 8, rel=0.02)


def test_compare_shows_scaling_where_ranks_differ(tmp_path):
    for folder, made in (("one", data_parallel(2, 4)), ("four", data_parallel(4, 14, host="b"))):
        (tmp_path / folder).mkdir()
        for rank, (_, document) in made.items():
            (tmp_path / folder / f"rank{rank}.json").write_text(json.dumps(document))
    sides = [str(tmp_path / "one"), str(tmp_path / "four")]
    result = CliRunner().invoke(compare, [*sides, "--format", "json"], catch_exceptions=False)
    document = json.loads(result.output)
    for side, number in zip(sides, (2, 4), strict=True):
        alone = f"{side}: rank 0 of {number} ranks is compared; --rank chooses another"
        assert alone in document["notes"]
    scaling = document["scaling"]
    assert (scaling["a_ranks"], scaling["b_ranks"]) == (2, 4)
    assert scaling["ranks"][0]["host"] == "b0"
    assert scaling["weak_efficiency"] < 0.8
    for name in ("table", "md"):
        text = (
            CliRunner().invoke(compare, [*sides, "--format", name], catch_exceptions=False).output
        )
        assert "efficiency" in text
    same = CliRunner().invoke(compare, [sides[0], sides[0], "--format", "json"])
    assert "scaling" not in json.loads(same.output)
    one = CliRunner().invoke(compare, [*sides, "--rank", "0", "--format", "json"])
    assert "scaling" not in json.loads(one.output)
    assert "is compared" not in one.output


def uneven(rank, world=4):
    """Two groups, of which one has a slow link; rank 3 gets most of what is exchanged."""
    t = GpuTrace(rank=rank, world_size=world, device=rank)
    pair = [0, 1] if rank < 2 else [2, 3]
    for step in range(4):
        with t.step():
            t.op("aten::mm").launch("ampere_sgemm_128x64_nn", ms(5))
            slow = ms(4) if pair == [2, 3] else ms(1)
            t.collective("all_reduce", 1 << 20, slow, group_name=str(pair[0]), group_ranks=pair)
            t.sync()
            size = (3 << 20) if rank == 3 else (1 << 20)
            t.collective("all_to_all", size, ms(2), group_name="9")
            t.sync()
            t.collective("all_gather", 1 << 20, ms(9) if step == 2 else ms(1), group_name="9")
            t.sync()
    return t.load()


def test_slow_groups_abnormal_transfers_and_uneven_experts():
    found = collectives_over_ranks(job_of({rank: uneven(rank) for rank in range(4)}))
    slowest = found.groups.row(0, named=True)
    assert slowest["ranks"] == [2, 3]
    assert slowest["bandwidth_of_best_share"] == pytest.approx(0.25)
    assert found.abnormal.select("step", "kind", "times_slower").rows() == [(2, "all_gather", 9.0)]
    assert len(found.uneven) == 4
    row = found.uneven.row(0, named=True)
    assert (row["most_rank"], row["least_bytes"], row["most_bytes"]) == (3, 1 << 20, 3 << 20)
    assert row["imbalance"] == pytest.approx(2.0)
    reduced = next(row for row in found.kinds.iter_rows(named=True) if row["kind"] == "all_reduce")
    # 1 MiB in 1 ms, over two ranks.
    assert reduced["best_bus_bandwidth_gb_per_s"] == pytest.approx(1.048576, rel=0.01)
    assert reduced["count"] == 8
    assert found.collectives == 16


def test_waits_are_no_transfers(tmp_path):
    made = data_parallel(4, 1, late_rank=2)
    found = collectives_over_ranks(loaded(made))
    # Of four ranks three wait ten milliseconds for a transfer of one.
    assert found.wait_share == pytest.approx(30 / 34, rel=0.01)
    for rank, (_, document) in made.items():
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(document))
    words = ["collectives", str(tmp_path), "--format", "json"]
    shown = json.loads(CliRunner().invoke(show, words, catch_exceptions=False).output)
    assert shown["wait_share"] == pytest.approx(found.wait_share)
