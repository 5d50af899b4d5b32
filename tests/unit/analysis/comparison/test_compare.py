"""Comparing two sides: what changed, by how much, and what is only noise."""

from __future__ import annotations

import dataclasses
import io
import json

import click
import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from rich.console import Console
from tests.support.gpu_trace import GpuTrace, us
from tests.support.rendered import print_blocks, rendered
from tests.support.step_records import step_records, write_run

from stepscope.analysis.comparison.compare import PART, THREAD_PART, compare
from stepscope.analysis.comparison.gate import CANNOT_TELL, FAILED, PASSED, FailOn
from stepscope.analysis.comparison.repeated_runs import student_95
from stepscope.analysis.comparison.side import make_side
from stepscope.analysis.record.summary import summarise_steps
from stepscope.commands.compare import command
from stepscope.errors import UsageError
from stepscope.report import comparison as of_comparison
from stepscope.report.comparison import CheckedComparison, warnings
from stepscope.report.comparison import to_json as comparison_to_dict
from stepscope.report.outputs import Layout


def trace(products=4, length=100, jitter=(0, 3, 5, 2, 4), extra=None, module="layer", steps=5):
    t = GpuTrace()
    for step in range(steps):
        with t.step():
            t.python(us(200))
            with t.annotate(module):
                for _ in range(products):
                    t.op("aten::mm").launch("gemm", us(length + jitter[step]))
            if extra:
                t.op("aten::add").launch(extra, us(50))
            t.op("aten::relu").launch("relu_kernel", us(20 + jitter[-step - 1]))
    return t


def side(t, **options):
    return make_side("side", t.load(), **options)


def row(comparison, table, name):
    found = comparison.changes.filter(pl.col("table") == table, pl.col("name") == name)
    assert len(found) == 1
    return found.row(0, named=True)


def test_stepscopes_own_time_is_in_no_step_that_is_compared(tmp_path):
    """As in a report, whose step and parts it is no part of either."""
    records = step_records([20.0] * 30, phases_ms={"forward": 12.0})
    records[20] = dataclasses.replace(
        records[20], dur_ns=records[20].dur_ns + 30_000_000, own_ns=30_000_000
    )
    paths = [str(write_run(tmp_path, {0: records}, name)) for name in ("before", "after")]
    shown = CliRunner().invoke(command, [*paths, "--format", "json"])
    assert shown.exit_code == 0, shown.output
    assert set(json.loads(shown.output)["a"]["step_ns"]) == {20_000_000}


def test_a_trace_against_itself_has_not_changed():
    comparison = compare(side(trace()), side(trace()))
    assert comparison.step.delta_ns == 0
    assert not comparison.step.is_beyond_noise
    assert set(comparison.changes["status"]) == {"same"}
    assert (comparison.changes["delta_ns"] == 0).all()
    assert FailOn.parse("regression>0%").check(comparison).outcome == CANNOT_TELL
    assert FailOn.parse("regression>50%").check(comparison).outcome == PASSED


def test_what_grew_appeared_and_disappeared_is_told_apart():
    before, after = trace(extra="old_kernel"), trace(length=150, extra="new_kernel")
    comparison = compare(side(before), side(after))
    assert row(comparison, "kernel", "gemm")["status"] == "grew"
    assert row(comparison, "kernel", "gemm")["delta_ns"] == 4 * us(50)
    assert row(comparison, "kernel", "old_kernel")["status"] == "disappeared"
    assert row(comparison, "kernel", "new_kernel")["status"] == "appeared"
    assert row(comparison, "kernel", "relu_kernel")["status"] == "same"
    back = compare(side(after), side(before))
    assert row(back, "kernel", "gemm")["status"] == "shrank"
    assert row(back, "kernel", "gemm")["delta_ns"] == -4 * us(50)


def test_parts_add_up_to_the_mean_step():
    comparison = compare(side(trace()), side(trace(products=6)))
    parts = comparison.changes.filter(pl.col("table") == "part")
    for letter, one in (("a", comparison.a), ("b", comparison.b)):
        assert abs(parts[f"{letter}_ns"].sum() - one.step_ns.mean()) <= len(parts)


def test_operators_meet_by_path_then_by_name():
    comparison = compare(side(trace()), side(trace(module="block")))
    assert row(comparison, "operator", "aten::relu")["matched_by"] == "call path"
    moved = row(comparison, "operator", "aten::mm")
    assert moved["matched_by"] == "name"
    assert moved["delta_ns"] == 0
    assert row(comparison, "operator", "layer")["status"] == "disappeared"
    assert row(comparison, "operator", "block")["status"] == "appeared"


def test_kernels_of_a_side_add_up_to_its_gpu_work():
    t = trace(extra="kernel")
    comparison = compare(side(t), side(t))
    kernels = comparison.changes.filter(pl.col("table") == "kernel")
    # The first step waits for its first launch, which makes it half as long again: start-up.
    assert comparison.a.step_ns.tolist() == [484_000, 495_000, 481_000, 486_000]
    steady = t.work[len(t.work) // 5 :]
    total = sum(w.end_ns - w.start_ns for w in steady)
    assert abs(int(kernels["a_ns"].sum()) * 4 - total) <= 4 * len(kernels)
    operators = comparison.changes.filter(pl.col("table") == "operator")
    assert abs(int(operators["a_ns"].sum()) - int(kernels["a_ns"].sum())) <= len(operators)


def records(durations_ms, **more):
    rows = step_records(durations_ms, **more)
    return make_side("run", None, rows, summarise_steps(rows))


def several(mean_ms, offsets, **more):
    return [records([mean_ms + offset] * 20, **more) for offset in offsets]


def test_noise_is_what_runs_differ_by_and_hides_small_changes():
    base = several(100, (0, 1, -1, 0.5))
    same = compare(base, several(100.3, (0.2, -0.8, 1, 0.1)))
    worse = compare(base, several(106, (0, 1, -1, 0.5)))
    assert not same.step.is_beyond_noise
    assert worse.step.is_beyond_noise
    assert same.step.noise_ns == pytest.approx(1.5e6, rel=0.4)
    (part,) = (row(one, "part", "other") for one in (worse,))
    assert (part["status"], part["delta_ns"]) == ("grew", 6_000_000)
    assert part["noise_ns"] == pytest.approx(worse.step.noise_ns, rel=0.05)
    assert row(same, "part", "other")["status"] == "same"


def test_one_run_a_side_shows_no_noise_however_many_steps_it_has():
    rng = np.random.default_rng(7)
    base, slower = 100 + rng.normal(0, 1, 200), 106 + rng.normal(0, 1, 200)
    worse = compare(records(base), records(slower))
    assert worse.step.noise_ns is None
    assert worse.changes["noise_ns"].is_null().all()
    # Whether 6% are more than runs of this job differ by is not known.
    check = FailOn.parse("regression > 3%")
    assert check.check(worse).outcome == CANNOT_TELL


@pytest.mark.parametrize(
    ("factor", "outcome"),
    [(1.06, CANNOT_TELL), (1.3, CANNOT_TELL), (1.34, FAILED), (0.8, CANNOT_TELL), (0.75, PASSED)],
)
def test_one_run_a_side_is_judged_by_what_the_line_below_the_headline_assumes(factor, outcome):
    """The line and the condition name the same assumption, and the answer follows from it."""
    found = compare(records([100] * 20), records([100 * factor] * 20))
    (line,) = warnings(found)
    assumed = "differ by 10% (standard deviation), as assumed here, −24% to +32% of the step"
    assert assumed in line
    check = FailOn.parse("regression>3%").check(found)
    assert check.outcome == outcome
    if outcome == CANNOT_TELL:
        assert assumed in check.reason
    else:
        assert "95% interval" not in check.reason
        assert "if runs of this job differ by 10%, as assumed with one run a side" in check.reason


def test_earlier_runs_of_the_job_show_the_noise_of_single_ones():
    earlier = [[100e6, 101e6, 99e6, 100e6, 100.5e6]]
    small = compare(records([100] * 20), records([101] * 20), earlier_ns=earlier)
    large = compare(records([100] * 20), records([110] * 20), earlier_ns=earlier)
    assert (small.step.is_beyond_noise, large.step.is_beyond_noise) == (False, True)
    assert not warnings(large)


def test_kernels_of_several_runs_are_compared_by_their_means():
    def runs(*lengths):
        return [side(trace(length=length)) for length in lengths]

    comparison = compare(runs(100, 104, 102), runs(100, 105, 101))
    assert row(comparison, "kernel", "gemm")["status"] == "same"
    assert row(comparison, "kernel", "gemm")["noise_ns"] > us(8)
    grown = row(compare(runs(100, 104, 102), runs(150, 155, 151)), "kernel", "gemm")
    assert (grown["status"], grown["delta_ns"]) == ("grew", pytest.approx(4 * us(50), abs=2))
    # A run without the kernel counts as 0.
    rare = compare(runs(100, 104), [side(trace(extra="rare")), side(trace())])
    assert row(rare, "kernel", "rare")["b_count"] == 0.5


def test_runs_without_a_window_say_nothing_of_kernels():
    rows = step_records([100] * 20)
    recorded = make_side("run", trace().load(), rows, summarise_steps(rows))
    comparison = compare([recorded, records([100] * 20)], [records([101] * 20), recorded])
    gemm = row(comparison, "kernel", "gemm")
    assert (gemm["a_ns"], gemm["delta_ns"], gemm["noise_ns"]) == (gemm["b_ns"], 0, None)
    alone = compare(records([100] * 20), recorded)
    assert alone.changes.filter(pl.col("table") == "kernel").is_empty()
    assert any("no recorded window" in note for note in alone.notes)


def test_a_part_can_fail_too_and_must_exist():
    comparison = compare(side(trace()), side(trace(products=8)))
    grown = FailOn.parse("compute>10%").check(comparison)
    assert grown.outcome == FAILED
    assert "compute grew" in grown.reason
    # A part that a GPU's step can have, but that neither side had, did not grow.
    for part in ("exposed copies", "idle: Python"):
        assert FailOn.parse(f"{part}>0%").check(comparison).outcome == PASSED
    with pytest.raises(UsageError, match="no part 'optimizer'"):
        FailOn.parse("optimizer>0%").check(comparison)
    with pytest.raises(UsageError, match="no part 'nonsense'; there are: regression, "):
        FailOn.parse("nonsense>1%").check(comparison)
    for wrong in ("regression", "regression<5%", "5%", "regression>five%"):
        with pytest.raises(UsageError, match="--fail-on"):
            FailOn.parse(wrong)


def test_a_record_and_a_trace_do_not_compare_in_silence():
    comparison = compare(side(trace()), records([100] * 20))
    assert any("the kinds of step differ" in one for one in comparison.differences)
    assert any("parts cannot be compared" in note for note in comparison.notes)


@pytest.fixture
def files(tmp_path):
    paths = []
    for name, t in (("a", trace()), ("b", trace(length=300))):
        path = tmp_path / f"{name}.pt.trace.json"
        path.write_bytes(t.json())
        paths.append(str(path))
    return paths


def run(arguments):
    return CliRunner().invoke(command, arguments, standalone_mode=False)


def test_the_command_fails_on_a_regression_and_only_then(files):
    worse = run([*files, "--fail-on", "regression>5%"])
    assert worse.return_value == 1
    assert "failed: the step grew" in worse.stderr
    assert run([*reversed(files), "--fail-on", "regression>5%"]).return_value == 0
    assert run(files).return_value == 0


def test_every_format_tells_the_same(files):
    document = json.loads(run([*files, "--format", "json"]).stdout)
    assert document["format"] == "stepscope-compare"
    assert document["step"]["delta_ns"] > 0
    assert isinstance(document["step"]["a_ns"], int)
    assert document["a"]["scope"]["steps"] == [1, 2, 3, 4]
    assert document["failed"] is None
    rows = run([*files, "--format", "csv"]).stdout.splitlines()
    assert len(rows) == 1 + len(document["changes"])
    markdown = run([*files, "--format", "md"]).stdout
    assert "| gemm |" in markdown
    assert markdown.startswith("median step ")
    table = run(files).stdout
    assert "gemm" in table
    assert "Parts of the step" in table


def test_steps_can_be_chosen_and_must_exist(files):
    document = json.loads(run([*files, "--steps", "1-3", "--format", "json"]).stdout)
    assert document["b"]["scope"]["steps"] == [1, 2, 3]
    wrong = run([*files, "--steps", "one"])
    assert isinstance(wrong.exception, click.UsageError)


def test_what_stands_beside_the_steps_is_not_compared(tmp_path):
    records = step_records([50] * 20)
    evaluation = dataclasses.replace(records[9], dur_ns=10**12, kind="evaluation")
    sides = [
        make_side(name, None, steps_of, summarise_steps(steps_of))
        for name, steps_of in (("a", records), ("b", [*records, evaluation]))
    ]
    assert sides[0].step_ns.tolist() == sides[1].step_ns.tolist()
    assert sides[0].parts.equals(sides[1].parts)


def test_runs_compare_by_their_step_records(tmp_path):
    first = write_run(tmp_path, {0: step_records([50] * 20, phases_ms={"forward": 30})}, "first")
    second = write_run(tmp_path, {0: step_records([80] * 20, phases_ms={"forward": 60})}, "second")
    document = json.loads(run([str(first), str(second), "--format", "json"]).stdout)
    assert document["step"]["change_share"] == pytest.approx(0.6)
    changed = {row["name"]: row["delta_ns"] for row in document["changes"]}
    assert changed["forward"] == 30_000_000
    with_rank = run([str(first), str(second), "--rank", "5"])
    assert isinstance(with_rank.exception, UsageError)


def test_parts_of_step_records_tell_more_than_a_short_window():
    """The step shrinks by two thirds, all of it waiting; the windows happen to wait alike."""

    def one(waits_ms):
        t = GpuTrace()
        for _ in range(3):
            with t.step():
                t.data_wait(us(500))
                t.op("aten::mm").python(us(9_500))
        steps = step_records([10 + wait for wait in waits_ms], waits_ms=waits_ms)
        return make_side("run", t.load(), steps, summarise_steps(steps))

    slow, fast = one([20.0, 20.5] * 38), one([0.1, 0.2] * 38)
    comparison = compare(slow, fast)
    assert comparison.step.change_share == pytest.approx(-0.67, abs=0.01)
    parts = comparison.changes.filter(pl.col("table") == "part")
    changed = {row["name"]: (row["status"], row["delta_ns"]) for row in parts.to_dicts()}
    assert changed["input"][0] == "shrank"
    assert changed["input"][1] == pytest.approx(-20.1e6, rel=0.01)
    assert changed["other"][0] == "same"
    assert parts["a_ns"].sum() == pytest.approx(slow.step_ns.mean(), abs=2)
    assert comparison.a.parts_basis == comparison.b.parts_basis == slow.basis


def _on_a_gpu(waits_ms, durations_ms=None, window_wait=500_000):
    """Windows of three steps that all wait alike, beside the record of a run."""
    t = GpuTrace()
    for _ in range(3):
        with t.step():
            t.data_wait(window_wait)
            t.op("aten::mm").launch("gemm", us(9_000))
            t.sync()
    durations = durations_ms or [10 + wait for wait in waits_ms]
    steps = step_records(durations, waits_ms=waits_ms)
    return make_side("run", t.load(), steps, summarise_steps(steps))


def test_on_a_gpu_the_records_parts_stand_beside_those_of_the_windows():
    """The step shrinks by two thirds, and 76 recorded waits tell why; the windows do not."""
    slow, fast = _on_a_gpu([20.0, 20.5] * 38), _on_a_gpu([0.1, 0.2] * 38)
    comparison = compare(slow, fast)
    assert comparison.step.change_share == pytest.approx(-0.67, abs=0.01)
    told = row(comparison, THREAD_PART, "input")
    assert told["status"] == "shrank"
    assert told["delta_ns"] == pytest.approx(-20.1e6, rel=0.01)
    of_thread = comparison.changes.filter(pl.col("table") == THREAD_PART)
    assert of_thread["a_ns"].sum() == pytest.approx(slow.step_ns.mean(), abs=2)
    of_gpu = comparison.changes.filter(pl.col("table") == PART)
    assert set(of_gpu["status"]) == {"same"}
    assert row(comparison, PART, "compute")["a_ns"] == us(9_000)
    assert any("(9.5 ms a step before, 9.5 ms after), not scaled" in n for n in comparison.notes)
    text = rendered("comparison", "md", CheckedComparison(comparison))
    assert "Parts of the training thread's step" in text
    assert FailOn.parse("input>5%").check(compare(fast, slow)).outcome == FAILED
    assert FailOn.parse("compute>5%").check(compare(fast, slow)).outcome != FAILED


def test_parts_of_windows_are_said_to_be_theirs():
    """Records without phases and waits tell no parts: those of the windows are in their time."""
    before = _on_a_gpu([0] * 20, [6.0] * 20)
    after = _on_a_gpu([0] * 20, [7.0] * 20, window_wait=us(2_500))
    comparison = compare(before, after)
    assert comparison.changes.filter(pl.col("table") == THREAD_PART).is_empty()
    assert any(
        "(9.5 ms a step before, 11.5 ms after), not scaled" in note for note in comparison.notes
    )
    # Traces alone have one step time, and need no such note.
    assert not [note for note in compare(side(trace()), side(trace())).notes if "scaled" in note]


def test_devices_and_linked_events_can_be_chosen(tmp_path):
    for name, linked_ns, other_ns in (("a", us(300), us(200)), ("b", us(300), us(500))):
        t = GpuTrace()
        for _ in range(4):
            with t.step():
                t.launch("sgemm_lost", us(90), linked=False)
                t.op("aten::mm").launch("sgemm", linked_ns)
                t.op("aten::mm").launch("sgemm_other", other_ns, device=1)
                t.sync()
        (tmp_path / f"{name}.json").write_bytes(t.json())
    files = [str(tmp_path / "a.json"), str(tmp_path / "b.json")]

    def kernels(*words):
        document = json.loads(run([*files, "--format", "json", *words]).stdout)
        changes = {r["name"]: r["delta_ns"] for r in document["changes"] if r["table"] == "kernel"}
        return document["a"]["scope"], changes

    scope, changes = kernels()
    assert (scope["devices"], scope["events"]) == ([0, 1], "all")
    assert changes == {"sgemm": 0, "sgemm_other": us(300), "sgemm_lost": 0}
    scope, changes = kernels("--device", "0")
    assert scope["devices"] == [0]
    assert scope["excluded"]["GPU events of other devices"] == 4
    assert changes == {"sgemm": 0, "sgemm_lost": 0}
    scope, changes = kernels("--device", "0", "--scope", "linked")
    assert scope["excluded"]["GPU events without a known launch"] == 4
    assert changes == {"sgemm": 0}
    for form in ("table", "md"):
        assert (
            "device 0; linked events"
            in run([*files, "--device", "0", "--scope", "linked", "--format", form]).stdout
        )
    wrong = run([*files, "--device", "3"])
    assert isinstance(wrong.exception, UsageError)


def test_the_interval_is_wide_where_few_steps_tell_of_their_own_spread():
    """Percentiles of Student's t from tables; the normal distribution's 1.96 is the limit."""
    for freedom, tabulated in ((4, 2.776), (6, 2.447), (10, 2.228), (30, 2.042), (1000, 1.962)):
        assert student_95(freedom) == pytest.approx(tabulated, rel=0.01)


def test_runs_on_different_gpus_are_said_to_be():
    before, after = trace(), trace()
    before.world_size, after.world_size = 8, 2
    after.device_name = "Tesla V100-SXM2-16GB"
    comparison = compare(side(before), side(after))
    gpus, jobs = comparison.differences
    assert gpus.startswith("the GPUs differ: ")
    assert gpus.endswith("Tesla V100-SXM2-16GB after")
    assert jobs == "the jobs differ: 8 ranks before, 2 ranks after"
    assert compare(side(trace()), side(trace())).differences == ()
    assert comparison_to_dict(CheckedComparison(comparison))["differences"] == [gpus, jobs]
    page = rendered("comparison", "html", CheckedComparison(comparison))
    assert page.count(jobs) == 1
    # Before the first table, as they change how everything is read.
    checked = CheckedComparison(comparison)
    with io.StringIO() as file:
        layout = Layout(rows=15)
        print_blocks(of_comparison.document(checked, layout), Console(file=file, width=200))
        texts = [file.getvalue(), rendered("comparison", "md", checked, layout)]
    for text in texts:
        assert text.count(jobs) == 1
        assert text.index(jobs) < text.index("Parts of the step")


def test_what_took_no_time_is_not_printed_and_places_tell_operators_apart():
    def built(length: int, calls: int) -> GpuTrace:
        t = GpuTrace()
        for step in range(5):
            with t.step():
                for module in ("encoder", "decoder"):
                    with t.op(module), t.op("wrapper"):
                        t.op("aten::mm").launch("gemm", us(length + step))
                for _ in range(calls):
                    t.op("aten::view").python(us(1))
        return t

    comparison = compare(side(built(100, 1)), side(built(300, 5)))
    text = rendered("comparison", "md", CheckedComparison(comparison), Layout(rows=15))
    assert "aten::mm in encoder" in text
    assert "aten::mm in decoder" in text
    assert "aten::view" not in text
    assert row(comparison, "operator", "aten::view")["b_count"] == 5


def test_busy_cpus_on_either_side_are_told():
    def run(queued_ms):
        rows = step_records([100] * 20, queued_ms=queued_ms)
        return make_side("run", None, rows, summarise_steps(rows))

    (said,) = compare(run(40), run(1)).differences
    assert said.startswith("the CPUs were busy: ")
    assert said.endswith("waited for one for 40% of the step before, 1.0% after")
    assert compare(run(None), run(40)).differences
    assert compare(run(4), run(1)).differences == ()
    assert compare(run(None), run(None)).differences == ()


def test_programs_that_have_nothing_in_common_are_told_so():
    def program(operator, kernel):
        t = GpuTrace()
        for _ in range(4):
            with t.step():
                t.op(operator).launch(kernel, us(100))
        return make_side(kernel, t.load())

    sides = [program("aten::mm", "sgemm"), program("aten::conv2d", "winograd")]
    (difference, *_) = compare(*sides).differences
    assert difference.startswith("these may be different programs")
    assert not any("different programs" in one for one in compare(sides[0], sides[0]).differences)
    # Another GPU has other kernels for the same operators.
    other_kernels = compare(sides[0], program("aten::mm", "hgemm"))
    assert not any("different programs" in one for one in other_kernels.differences)


def test_a_program_that_no_longer_waits_for_its_loader_is_the_same_one():
    def program(wait):
        t = GpuTrace()
        for _ in range(4):
            with t.step():
                t.data_wait(us(wait))
                with t.op("aten::mm"):
                    t.python(us(200))
        return make_side("run", t.load())

    differences = compare(program(90_000), program(1)).differences
    assert not any("different programs" in one for one in differences)
