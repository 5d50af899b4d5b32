"""The report of traces with GPU work: several ranks, odd files, and what programs read."""

from __future__ import annotations

import io
import json
import re

import pytest
from click.testing import CliRunner
from rich.console import Console
from tests.support.gpu_trace import GpuTrace, ms, us
from tests.support.planted import GEMM, SCENARIOS, healthy, job, products
from tests.support.rendered import diagnosis_to_html, print_diagnosis
from tests.support.step_records import step_records

from stepscope.advice.diagnosis import diagnose
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.evidence.window_view import WindowView
from stepscope.advice.finding import Finding, Severity
from stepscope.advice.rules import RULES
from stepscope.advice.rules.host.utilisation import find_low_gpu_utilisation
from stepscope.advice.thresholds import Thresholds
from stepscope.commands.report import command
from stepscope.errors import UnreadableInputError
from stepscope.opening.reader import RankRun, open_run
from stepscope.report.document import Findings, ShownFinding
from stepscope.report.findings import ranks_with, short_saving
from stepscope.report.render.terminal import _short_findings
from stepscope.report.units import duration


def write(folder, document, name="trace.pt.trace.json"):
    path = folder / name
    path.write_text(json.dumps(document), encoding="utf-8")
    return str(path)


def screen(path):
    stream = io.StringIO()
    console = Console(file=stream, width=120, highlight=False, color_system=None)
    print_diagnosis(diagnose(open_run(path)), console)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("name", "rule", "is_upper_bound"),
    [("starved GPU", "launch-bound", True), ("slow loader", "input-bound", False)],
)
def test_a_saving_that_no_fix_exceeds_is_said_to_be_one(tmp_path, name, rule, is_upper_bound):
    """Dispatch that costs nothing is a limit; a loader that keeps up is what the fix brings."""
    scenario = next(one for one in SCENARIOS if one.name == name)
    path = write(tmp_path, scenario.build().document())
    diagnosis = diagnose(open_run(path))
    finding = diagnosis.findings[0]
    assert (finding.id, finding.is_upper_bound) == (rule, is_upper_bound)
    most = "up to " if is_upper_bound else ""
    assert f"fixing it saves {most}{finding.saving_ns / finding_step_ns(finding):.0%} of" in (
        diagnosis.verdict
    )
    text = " ".join(screen(path).split())
    assert f"saving {most}{duration(finding.saving_ns)} per step: " in text
    assert short_saving(finding).startswith(f"saves {most}{duration(finding.saving_ns)} of ")
    page = diagnosis_to_html(diagnosis)
    assert f'"up_to":"{most}"' in page


def finding_step_ns(finding):
    return finding.saving_ns + finding.predicted_step_ns


def test_programs_get_the_findings_by_saving_with_their_reasons(tmp_path):
    scenario = next(s for s in SCENARIOS if s.name == "starved GPU")
    path = write(tmp_path, scenario.build().document())
    result = CliRunner().invoke(command, [path, "--format", "json"], standalone_mode=False)
    document = json.loads(result.stdout)
    (first,) = document["findings"]
    assert first["id"] == "launch-bound"
    assert isinstance(first["saving_ns"], int)
    assert first["evidence"]
    assert first["advice"]
    assert first["page"] == "docs/findings/launch-bound.md"
    assert not first["saving_reason"]
    trace = document["ranks"][0]["trace"]
    assert (
        sum(part["total_ns"] for part in trace["partition"]["parts"])
        == (trace["partition"]["total_ns"])
    )
    assert trace["scope"]["steps"] == list(range(8))
    path_parts = trace["critical_path"]
    assert sum(part["total_ns"] for part in path_parts["parts"]) == path_parts["total_ns"]


def test_what_several_ranks_share_is_told_once(tmp_path):
    scenario = next(s for s in SCENARIOS if s.name == "slow loader")
    for rank in range(3):
        t = scenario.build()
        t.rank = rank
        document = t.document()
        document["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": 3}
        write(tmp_path, document, f"rank{rank}.pt.trace.json")
    diagnosis = diagnose(open_run(str(tmp_path)))
    assert [f.id for f in diagnosis.findings] == ["input-bound"] * 3
    text = screen(str(tmp_path))
    assert text.count("the step waits for its input") == 2  # the verdict, and one finding
    assert "(rank 0; also on 2 others: ranks 1, 2)" in " ".join(text.split())


@pytest.mark.parametrize(
    ("savings_us", "told"),
    [
        ([3000] * 256, "rank 0; also on 255 others: ranks 1 to 255"),
        ([3000, 2980, 2000, 2980], "rank 0; less on 3 others: ranks 1 to 3"),
        ([3000, 2999, 2000], "rank 0; also on 2 others: ranks 1, 2"),
        ([3000, 4000], "rank 0; also on 1 other: rank 1"),
        ([3000, None], "rank 0; also on 1 other: rank 1"),
        ([3000], "rank 0"),
    ],
)
def test_a_finding_is_less_on_other_ranks_only_where_it_is_seen_to_be(savings_us, told):
    def finding(rank, saving_us):
        none = saving_us is None
        saving_ns = None if none else round(saving_us * 1000)
        return Finding(
            id="launch-bound", title="it waits", severity=Severity.HIGH, rank=rank,
            saving_ns=saving_ns, saving_reason="unknown" if none else "",
            predicted_step_ns=None if none else 1, evidence=(), advice="launch less",
        )  # fmt: skip

    assert ranks_with([finding(rank, one) for rank, one in enumerate(savings_us)]) == told


def strip(document, keep):
    return {**document, "traceEvents": [e for e in document["traceEvents"] if keep(e)]}


def test_a_file_without_steps_is_one_stretch_and_says_so(tmp_path):
    nameless = ("ProfilerStep", "Optimizer.", "enumerate(")
    document = strip(job(healthy).document(), lambda e: not e["name"].startswith(nameless))
    text = screen(write(tmp_path, document))
    assert "the whole file as one step" in text


def test_a_file_without_annotated_steps_says_what_it_takes_as_steps(tmp_path):
    document = strip(job(healthy).document(), lambda e: "ProfilerStep" not in e["name"])
    text = screen(write(tmp_path, document))
    assert "4 optimizer steps taken as steps" in " ".join(text.split())
    assert "the whole file as one step" not in text


def test_a_file_with_nothing_of_the_host_is_judged_as_far_as_it_goes(tmp_path):
    gpu = ("kernel", "gpu_memcpy", "gpu_memset")
    document = strip(job(healthy).document(), lambda e: e.get("cat") in gpu)
    diagnosis = diagnose(open_run(write(tmp_path, document)))
    assert [f.id for f in diagnosis.findings] == ["trace-incomplete"]
    assert diagnosis.ranks[0].partition is not None


@pytest.mark.parametrize("kept", ["python_function", "nothing", "ProfilerStep"])
def test_a_file_with_nothing_to_judge_is_said_to_be_so(tmp_path, kept):
    document = strip(
        job(healthy).document(), lambda e: e.get("cat") == kept or e["name"].startswith(kept)
    )
    with pytest.raises(UnreadableInputError, match="nothing to judge"):
        diagnose(open_run(write(tmp_path, document)))


def test_a_folder_without_a_trace_says_what_was_looked_for(tmp_path):
    for name in ("losses.json", "words.json"):
        (tmp_path / name).write_text('{"a": 1}')
    with pytest.raises(UnreadableInputError) as raised:
        diagnose(open_run(tmp_path))
    said = str(raised.value)
    assert said.startswith(f"{tmp_path}: nothing to judge: 2 files have names")
    assert "*.json, *.json.gz" in said
    assert re.search(r"only the newest is judged: .*(losses|words)\.json", said)


def test_a_file_that_is_cut_off_says_what_it_lacks(tmp_path):
    path = tmp_path / "trace.pt.trace.json"
    text = json.dumps(job(healthy).document())
    path.write_text(text[: len(text) * 3 // 4], encoding="utf-8")
    diagnosis = diagnose(open_run(str(path)))
    assert "trace-incomplete" in {finding.id for finding in diagnosis.findings}


@pytest.mark.slow
def test_thresholds_silence_every_rule():
    silent = Thresholds(
        **{
            name: 10.0 if isinstance(value, float) else 10**15
            for name, value in vars(Thresholds()).items()
        }
        | {
            # Limits that something must stay below to be worth a finding.
            "memory_far_below": -1.0,
            "gpu_utilisation": 0.0,
            "poor_overlap": -1.0,
            "small_kernel_ns": 0,
            # Not a share, but a number of steps.
            "slow_first_steps_steps": 1e9,
        }
    )
    for scenario in SCENARIOS:
        if scenario.name == "GPU side missing":
            continue  # not a matter of degree
        window = WindowView(scenario.build().load())
        subject = Subject(0, window=window, thresholds=silent)
        assert [f for find in RULES.values() for f in find(subject)] == [], scenario.name


def test_utilisation_is_of_all_devices_together():
    def two(busy_ms):
        t = GpuTrace()
        with t.step():
            products(t, 1, ms(10))
            t.op("aten::mm").launch(GEMM, ms(busy_ms), device=1)
            t.python(us(100))
        return WindowView(t.load())

    subject = Subject(0, window=two(10))
    assert find_low_gpu_utilisation(subject) == []
    (finding,) = find_low_gpu_utilisation(
        Subject(0, window=two(1), thresholds=Thresholds(gpu_utilisation=0.999))
    )
    assert finding.saving_ns is None


def test_what_an_outlier_costs_is_no_part_of_exposed_communication(tmp_path):
    def job_with(slow_ms):
        t = GpuTrace(world_size=2)
        for step in range(8):
            with t.step():
                for number in range(4):
                    products(t, 1, ms(1))
                    is_slow = step in {3, 5} and number == 2
                    length = ms(slow_ms) if is_slow else us(500)
                    t.wait_collective(t.collective("all_reduce", 1 << 20, length))
                t.sync()
        return t

    def exposed(slow_ms):
        path = write(tmp_path, job_with(slow_ms).document(), f"slow{slow_ms}.json")
        findings = {f.id: f for f in diagnose(open_run(path)).findings}
        return findings["exposed-communication"], findings

    plain, _ = exposed(0.5)
    disturbed, findings = exposed(80)
    assert disturbed.saving_ns == pytest.approx(plain.saving_ns, rel=0.01)
    assert "fixed first" in disturbed.assumption
    assert "fixed first" not in plain.assumption
    assert findings["abnormal-collective"].saving_ns > 4 * disturbed.saving_ns


@pytest.mark.parametrize(("factor", "is_sure"), [(1.1, True), (3.0, False)])
def test_what_recording_stretched_makes_no_verdict(tmp_path, monkeypatch, factor, is_sure):
    scenario = next(s for s in SCENARIOS if s.name == "Python loop")
    path = write(tmp_path, scenario.build().document())
    records = step_records([20.0] * 30 + [20.0 * factor] * 8, recorded=range(30, 38))
    monkeypatch.setattr(RankRun, "steps", tuple(records))  # as if they lay beside the trace
    diagnosis = diagnose(open_run(path))
    (found,) = (f for f in diagnosis.findings if f.id == "cpu-bound-python")
    assert (found.severity is Severity.HIGH) == is_sure
    assert f"which takes {factor:.2f}× as long" in found.assumption
    # The promise is in the time of unrecorded steps.
    assert found.predicted_step_ns is not None
    assert found.saving_ns + found.predicted_step_ns == 20_000_000
    assert diagnosis.verdict.startswith("cpu-bound-python") == is_sure
    assert ("profiler-overhead" in {f.id for f in diagnosis.findings}) == (not is_sure)


def test_a_finding_of_another_rank_names_it_also_where_nothing_is_saved():
    """Its title states a share of that rank's step, and the report the parts of another's."""
    found = Finding(
        id="exposed-communication",
        title="99% of the step is waiting for communication",
        severity=Severity.LOW,
        rank=0,
        saving_ns=None,
        saving_reason="the wait is for another rank",
        evidence=(),
        advice="Compare the ranks first.",
    )
    assert short_saving(found, "rank 0's ") == "rank 0's saving: not estimated"
    stream = io.StringIO()
    console = Console(file=stream, width=100)
    for shown_rank in (1, 0):
        block = Findings((ShownFinding(found),), shown_rank, is_short=True)
        for line, _ in _short_findings(block, console):
            console.print(line)
    assert stream.getvalue().count("rank 0's saving: not estimated") == 1
    assert stream.getvalue().count("saving: not estimated") == 2
