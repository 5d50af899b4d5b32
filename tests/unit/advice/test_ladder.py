"""The ladder: known steps after each fix, known floors, and what must hold for every ladder."""

from __future__ import annotations

import functools
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from tests.support.gpu_trace import GpuTrace, ms, us
from tests.support.planted import GEMM, HALF, MM_FLOAT, PLAIN, SCENARIOS, Scenario, dump, products
from tests.support.rendered import diagnosis_to_markdown
from tests.support.step_records import step_records, write_run

from stepscope.advice.diagnosis import diagnose
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.evidence.window_view import WindowView
from stepscope.advice.finding import Finding
from stepscope.advice.job.reading import SummaryTask
from stepscope.advice.rank.ladder import Ladder, Rung
from stepscope.advice.rank.ladder_answer import ladder_of
from stepscope.advice.rank.rungs import climb
from stepscope.advice.rank.summary import RankSummary, Request
from stepscope.advice.rules import RULES, rules_of_a_rank
from stepscope.analysis.floors import find_floors
from stepscope.analysis.graph.changes import Changes
from stepscope.analysis.graph.replay import replay
from stepscope.analysis.questions import ask_all, question
from stepscope.analysis.selection.scope import Scope
from stepscope.opening.reader import open_run
from stepscope.report.diagnosis import to_json as diagnosis_to_dict
from stepscope.report.scope import describe_scope
from stepscope.trace.paths import resolve_traces
from stepscope.trace.store.memo import decode, encode

STEPS = 4
TFLOPS_HALF, TFLOPS_TF32, TFLOPS_FLOAT, BYTES_PER_NS = 989.4, 494.7, 66.9, 3352
"""Of the H100 that the traces are of."""
_NO_FINDINGS = ("today", "device", "precision", "host")


def trained(body, *, steps: int = STEPS, **options) -> GpuTrace:
    """Steps with nothing in them but the body, on a GPU that is busy when they begin."""
    t = GpuTrace(memory_bytes=80 << 30, **options)
    t.memory(55 << 30)
    body(t)
    for _ in range(steps):
        with t.step():
            body(t)
    t.sync()
    return t


def floor_of_product(m: int, k: int, n: int, teraflops: float, item: int) -> float:
    """Independent of the product's own formulas: nanoseconds on the H100."""
    return max(2 * m * k * n / teraflops / 1e3, item * (m * k + k * n + m * n) / BYTES_PER_NS)


def test_a_gpu_bound_step_has_the_floor_of_its_products():
    answer = ladder_of(trained(products).load())
    assert answer.rungs["rung"].to_list() == ["today", "device", "host"]
    assert answer.step_ns == pytest.approx(10 * us(900), rel=0.01)
    expected = 10 * floor_of_product(8192, 4096, 8192, TFLOPS_HALF, 2)
    # Kernels follow each other within a microsecond or so.
    assert answer.rungs["step_ns"][1] == pytest.approx(expected, rel=0.01)
    assert answer.floor_ns == answer.rungs["step_ns"][-1] >= expected
    assert answer.rungs["limit"].to_list() == ["GPU compute", "GPU compute", "floor"]
    assert answer.next_limit.startswith("the floor of this work on ")
    assert any("989 TFLOP/s in BF16" in note for note in answer.notes)
    assert any("matrix products, convolutions and attention 100%" in note for note in answer.notes)


def test_full_precision_is_fixed_first_and_then_has_the_peak_of_tf32():
    answer = ladder_of(trained(lambda t: products(t, name=PLAIN, length=ms(6), **MM_FLOAT)).load())
    assert answer.rungs["rung"].to_list() == [
        "today",
        "full-precision-matmuls",
        "device",
        "precision",
        "host",
    ]
    today, fixed, device, precision, floor = answer.rungs["step_ns"].to_list()
    assert today == pytest.approx(60e6, rel=0.01)
    in_float = 10 * floor_of_product(8192, 4096, 4096, TFLOPS_FLOAT, 4)
    in_tf32 = 10 * floor_of_product(8192, 4096, 4096, TFLOPS_TF32, 4)
    assert fixed == pytest.approx(in_tf32 / 0.6, rel=0.01)
    assert device == pytest.approx(min(fixed, in_float), rel=0.01)
    assert precision == pytest.approx(in_tf32, rel=0.01)
    assert in_tf32 <= floor <= precision
    assert any("495 TFLOP/s in TF32" in note for note in answer.notes)


def test_the_host_is_next_and_its_time_is_known():
    # The GPU needs 4 ms for a step; the host waits 20 ms for its batch and works 8 ms.
    def body(t: GpuTrace) -> None:
        t.data_wait(ms(20))
        for _ in range(4):
            t.python(ms(2))
            t.op("aten::mm", shapes=[[4096, 4096], [4096, 4096]], types=HALF).launch(GEMM, ms(1))

    answer = ladder_of(trained(body).load())
    rows = {row["rung"]: row for row in answer.rungs.iter_rows(named=True)}
    assert rows["today"]["limit"] == "input"
    assert rows["input-bound"]["step_ns"] == pytest.approx(8e6, rel=0.03)
    assert rows["input-bound"]["limit"] == "host"
    assert "with input-bound fixed, the step takes 8" in answer.next_limit
    assert "and the host limits it" in answer.next_limit
    assert rows["cpu-bound-python"]["limit"] == "GPU compute"
    floor = 4 * floor_of_product(4096, 4096, 4096, TFLOPS_HALF, 2)
    assert answer.floor_ns == pytest.approx(floor, rel=0.05)


def test_where_the_job_gains_less_no_shorter_step_is_promised(tmp_path):
    """The ladder is of one rank; a finding of a job saves what all ranks allow."""
    run = write_run(tmp_path, {0: step_records([100] * 20, waits_ms=[60] * 20)})
    rank = diagnose(open_run(run)).shown
    rungs = (Rung("today", "", 100, "input", None, ""), Rung("a", "", 40, "CPU", None, ""))
    finding = replace(rank.findings[0], id="a", saving_ns=60, predicted_step_ns=40)
    alone = replace(rank, ladder=Ladder(rungs, 7, "GPU"), findings=(finding,))
    assert alone.next_limit().startswith("with a fixed, the step takes 40 ns")
    assert alone.next_limit("a: slow").endswith("; the floor of this work on GPU is 7 ns")
    limited = replace(finding, saving_ns=20, predicted_step_ns=80, own_saving_ns=60)
    for less in (limited, replace(finding, saving_ns=None, saving_reason="others limit it")):
        of_job = replace(alone, findings=(less,))
        assert of_job.next_limit() == "the floor of this work on GPU is 7 ns"
    assert alone.next_limit("b: slower") == "the floor of this work on GPU is 7 ns"


def test_collectives_have_the_best_bandwidth_of_their_group():
    # One in four collectives of a size is quick, the others take three times as long.
    def body(t: GpuTrace) -> None:
        for length in (ms(3), ms(3), ms(3), ms(1)):
            products(t, 1, us(900))
            t.wait_collective(t.collective("all_reduce", 64 << 20, length))

    trace = trained(body, world_size=8).load()
    window = WindowView(trace)
    floors = find_floors(trace, window.work, window.scope)
    of_kind = {kind.name: kind for kind in floors.kinds}["collectives"]
    assert of_kind.known_ns == of_kind.total_ns == STEPS * ms(10)
    assert of_kind.floor_ns == pytest.approx(STEPS * ms(4), abs=100)
    answer = ladder_of(trace)
    assert answer.rungs["limit"][0] == "exposed communication"
    expected = ms(4) + 4 * floor_of_product(8192, 4096, 8192, TFLOPS_HALF, 2)
    below_all_fixes = answer.rungs.filter(rung="device")["step_ns"][0]
    assert answer.floor_ns <= below_all_fixes <= expected * 1.02


def test_the_bytes_of_other_kernels():
    def body(t: GpuTrace) -> None:
        for _ in range(20):
            sizes = [[1 << 26], [1 << 26]]
            t.op("aten::mul", shapes=sizes, types=HALF).launch("elementwise_kernel", us(500))

    trace = trained(body).load()
    window = WindowView(trace)
    floors = find_floors(trace, window.work, window.scope)
    each = 3 * 2 * (1 << 26) / BYTES_PER_NS
    assert floors.floor_ns.tolist() == pytest.approx([each] * (20 * STEPS), abs=1.5)
    assert floors.known_share == 1.0


def test_without_shapes_there_is_no_floor_and_the_way_to_it():
    def body(t: GpuTrace) -> None:
        for _ in range(10):
            t.op("aten::mm").launch(GEMM, us(900))

    answer = ladder_of(trained(body).load())
    assert answer.floor_ns is None
    assert answer.rungs["rung"].to_list() == ["today", "host"]
    assert answer.rungs["limit"].to_list() == ["GPU compute", "GPU compute"]
    assert any("record_shapes=True" in note for note in answer.notes)


def test_a_device_that_is_not_known_has_no_floor():
    answer = ladder_of(trained(products, device_name="Some GPU 2040").load())
    assert answer.floor_ns is None
    assert any("not in the table of peaks" in note for note in answer.notes)
    assert not any("record_shapes" in note for note in answer.notes)


def test_without_a_gpu_the_ladder_ends_with_the_findings():
    t = GpuTrace(device_name=None)
    for _ in range(8):
        with t.step():
            t.data_wait(ms(30), workers=False)
            t.op("aten::linear").python(ms(10))
    answer = ladder_of(t.load())
    assert answer.rungs["rung"].to_list() == ["today", "input-bound"]
    assert answer.rungs["limit"].to_list() == ["input", "CPU"]
    assert answer.rungs["step_ns"][1] == pytest.approx(10e6, rel=0.01)
    assert answer.floor_ns is None


@pytest.mark.parametrize(
    ("sleeping_ms", "limit"), [(64, "input"), (4, "CPU")], ids=["a slow disk", "computation"]
)
def test_on_free_cpus_the_record_shows_what_limits_the_step(tmp_path, sleeping_ms, limit):
    """The window's waits are those of busy CPUs, so a replay of it does not show that."""
    t = GpuTrace(device_name=None)
    for _ in range(3):
        with t.step():
            t.data_wait(ms(150), workers=False)
            t.op("aten::linear").python(ms(250))
    queued = 330 - sleeping_ms
    busy = {"waits_ms": 150, "wait_cpu_ms": 150 - sleeping_ms, "cpu_ms": 70, "queued_ms": queued}
    run = write_run(tmp_path, {0: step_records([400] * 20, **busy)}, windows={0: t.json()})
    rungs = diagnose(open_run(str(run))).shown.ladder.rungs
    assert (rungs[1].id, rungs[1].limit) == ("busy-cpus", limit)
    assert rungs[1].step_ns == ms(400 - queued)


def test_on_a_cpu_the_parts_of_the_step_record_say_what_limits_it_today(tmp_path):
    t = GpuTrace(device_name=None)
    for _ in range(3):  # slower than the others, as recorded steps are
        with t.step():
            t.data_wait(ms(30), workers=False)
            t.op("aten::linear").python(ms(20))
    run = write_run(tmp_path, {0: step_records([40] * 20, waits_ms=30)}, windows={0: t.json()})
    today = diagnose(open_run(str(run))).shown.ladder.rungs[0]
    assert (today.limit, today.limit_share) == ("input", pytest.approx(0.75))


def test_a_healthy_cpu_run_has_a_reason_for_no_ladder():
    t = GpuTrace(device_name=None)
    for _ in range(8):
        with t.step():
            t.op("aten::linear").python(ms(10))
    answer = ladder_of(t.load())
    assert answer.rungs.is_empty()
    assert answer.step_ns is None
    assert "no finding promises a saving" in answer.notes[0]


def test_inference_has_a_ladder():
    def body(t: GpuTrace) -> None:
        with t.op("aten::linear"):
            products(t, 5)

    answer = ladder_of(trained(body).load())
    expected = 5 * floor_of_product(8192, 4096, 8192, TFLOPS_HALF, 2)
    assert answer.floor_ns == pytest.approx(expected, rel=0.01)


@pytest.mark.sampled(10)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.name)
def test_what_holds_for_every_ladder(scenario: Scenario):
    window = WindowView(scenario.build().load(), Scope())
    subject = Subject(0, window=window)
    found = [one for name in rules_of_a_rank(has_memory=False) for one in RULES[name](subject)]
    ladder = climb(subject, found)
    if not ladder.rungs:
        assert ladder.reason
        return
    assert not ladder.reason
    steps = [rung.step_ns for rung in ladder.rungs]
    assert steps[0] == window.step_ns
    assert steps == sorted(steps, reverse=True)
    assert all(step >= 0 for step in steps)
    # Each rung of replayed findings is the replay of all of them together.
    fixed: list[Finding] = []
    for before, rung in pairwise(ladder.rungs):
        mine = next((one for one in found if one.id == rung.id and one.saving_ns), None)
        if mine is None or mine.changes is None:
            break
        fixed.append(mine)
        changes = [one.changes for one in fixed if one.changes is not None]
        together = replay(functools.reduce(Changes.and_also, changes))
        # No finding promises more than the ladder gives it.
        saved_ns = max(together.saving_ns, *(one.saving_ns or 0 for one in fixed))
        assert rung.step_ns == min(before.step_ns, steps[0] - saved_ns)
    check_floor(ladder, window)


def check_floor(ladder: Ladder, window: WindowView) -> None:
    """No stream is done before the sum of the floors of its work, step after step."""
    if not window.has_gpu:
        assert ladder.floor_ns is None
        return
    floors = find_floors(window.trace, window.work, window.scope, "tf32")
    least = window.work.select("lane_id", floor=floors.better_ns).group_by("lane_id").sum()
    serial = int(least["floor"].max()) // window.steps
    # Findings may take work away, and so go below the floor of today's work.
    if ladder.floor_ns is not None and all(rung.id in _NO_FINDINGS for rung in ladder.rungs):
        assert ladder.floor_ns >= serial


def test_the_ladder_survives_the_cache_and_every_format(tmp_path: Path):
    path = tmp_path / "trace.json"
    path.write_bytes(dump(trained(products)))
    diagnosis = diagnose(open_run(path))
    summary = diagnosis.shown
    assert decode(RankSummary, encode(summary)).ladder == summary.ladder
    assert summary.ladder.rungs
    again = SummaryTask(open_run(path).ranks[0], Request()).read()
    assert again.ladder == summary.ladder
    rank = diagnosis_to_dict(diagnosis)["ranks"][0]
    assert [one["id"] for one in rank["ladder"]["rungs"]] == ["today", "device", "host"]
    shown = diagnosis_to_markdown(diagnosis)
    assert "## How far it can go" in shown
    assert "he floor of this work on H100 SXM is" in shown
    # The question states the same ladder as the report.
    answer = ladder_of(trained(products).load())
    assert answer.rungs["step_ns"].to_list() == [one.step_ns for one in summary.ladder.rungs]


def test_of_a_run_the_steps_are_those_of_its_record(tmp_path: Path):
    records = step_records([20.0] * 40, recorded=range(20, 24))
    run = write_run(tmp_path, {0: records}, windows={0: dump(trained(products))})
    ladder = diagnose(open_run(run)).shown.ladder
    (answer,) = ask_all(question("ladder"), resolve_traces((str(run),))).answers
    result = answer.result
    assert result.rungs["step_ns"].to_list() == [rung.step_ns for rung in ladder.rungs]
    assert result.step_ns == 20_000_000
    alone = ladder_of(trained(products).load())
    share = alone.rungs["step_share"].to_list()
    assert result.rungs["step_share"].to_list() == pytest.approx(share, rel=1e-3)
    assert "to the run's (20.0 ms" in describe_scope(result.scope)
    # The steps that somebody asks for take what they take.
    some = ask_all(question("ladder"), resolve_traces((str(run),)), Scope(steps=(1, 2))).answers
    assert next(iter(some)).result.step_ns == alone.step_ns
