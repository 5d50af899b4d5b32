"""A file that is cut off: what is stated of it is true of the whole file, and the rest is not told.

The oracle is the whole file as JSON: durations of its annotations, from one start to the next.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.annotated_steps import means_of_whole_steps
from tests.support.gpu_trace import GpuTrace, ms, us
from tests.support.planted import dump
from tests.support.rank_jobs import rank_of_job
from tests.support.rendered import diagnosis_to_html, diagnosis_to_markdown

from stepscope.advice.diagnosis import Diagnosis, diagnose
from stepscope.opening.reader import open_run
from stepscope.report.diagnosis import to_json as diagnosis_to_dict

STEPS = 6


def _training(*, annotate_steps: bool = True) -> bytes:
    """Steps of different lengths, with the events in Kineto's order: the host's, then the GPU's."""
    t = GpuTrace(annotate_steps=annotate_steps)
    for number in range(STEPS):
        with t.step():
            t.python(ms(2) + us(100) * number)
            for _ in range(20):
                t.op("aten::mm").launch("gemm", us(300))
            t.sync()
    document = json.loads(dump(t))
    events = document["traceEvents"]
    host = ("cpu_op", "user_annotation", "python_function")
    events.sort(key=lambda one: (one.get("cat") not in host, one.get("ts", 0)))
    events += [{"ph": "i", "s": "g", "name": "Record Window End", "ts": 9e9, "pid": "", "tid": ""}]
    return json.dumps({"traceEvents": events, "schemaVersion": 1}).encode()


def _cuts(content: bytes) -> Iterator[bytes]:
    # Within the first event, which is a step if steps are annotated.
    yield content[:60]
    for twentieth in range(2, 20):
        yield content[: len(content) * twentieth // 20]


def _judge(path: Path, content: bytes) -> Diagnosis:
    path.write_bytes(content)
    return diagnose(open_run(str(path)))


def test_what_is_stated_of_a_file_that_is_cut_off_is_true(tmp_path):
    content = _training()
    whole = _judge(tmp_path / "whole.pt.trace.json", content)
    assert whole.shown.device is not None
    true = means_of_whole_steps(content)
    stated = 0
    for number, cut in enumerate(_cuts(content)):
        diagnosis = _judge(tmp_path / f"{number}.pt.trace.json", cut)
        shown = diagnosis.shown
        assert shown.is_cut_off
        assert shown.partition is None
        assert [one.id for one in diagnosis.findings] == ["trace-incomplete"]
        assert diagnosis.verdict.startswith("trace-incomplete: the file is cut off")
        if shown.step_ns is not None:
            stated += 1
            # Kineto's times have three decimals of a microsecond.
            assert any(abs(shown.step_ns / 1e6 - mean) < 1e-5 for mean in true)
            assert "annotated steps on the host" in diagnosis_to_markdown(diagnosis)
        else:
            assert "**Step**: unknown" in diagnosis_to_markdown(diagnosis)
    # Of the earliest cuts no step is whole.
    assert len(list(_cuts(content))) / 2 < stated < len(list(_cuts(content)))


def test_nothing_is_stated_of_the_steps_of_a_cut_off_file_without_annotations(tmp_path):
    for cut in _cuts(_training(annotate_steps=False)):
        assert _judge(tmp_path / "trace.pt.trace.json", cut).shown.step_ns is None


def test_a_file_that_is_cut_off_after_its_last_event_is_judged_as_it_would_be_whole(tmp_path):
    content = _training()
    cut = content[: content.rindex(b"]") - 1] + b"}, "
    assert b"Record Window End" in cut
    whole = _judge(tmp_path / "whole.pt.trace.json", content)
    found = _judge(tmp_path / "cut.pt.trace.json", cut)
    assert any(problem == "truncated" for problem, _, _ in found.shown.problems)
    assert found.shown.partition == whole.shown.partition
    assert found.verdict == whole.verdict
    assert found.findings == whole.findings


def test_a_step_does_not_end_where_a_later_one_begins(tmp_path):
    """The annotation that followed may be among what is missing."""
    document = json.loads(_training())
    document["traceEvents"] = [
        one for one in document["traceEvents"] if one["name"] != "ProfilerStep#2"
    ]
    content = json.dumps(document).encode()
    shown = _judge(tmp_path / "trace.pt.trace.json", content[: len(content) * 3 // 4]).shown
    assert 1 not in shown.window_steps
    assert shown.step_ns is not None
    assert any(abs(shown.step_ns / 1e6 - mean) < 1e-5 for mean in means_of_whole_steps(_training()))


@pytest.mark.parametrize("share", [0.1, 0.6])
def test_every_output_can_show_a_file_that_is_cut_off(tmp_path, share):
    content = _training()
    diagnosis = _judge(tmp_path / "trace.pt.trace.json", content[: int(len(content) * share)])
    for show in (diagnosis_to_markdown, diagnosis_to_html):
        assert "he file is cut off" in show(diagnosis)
    assert diagnosis_to_dict(diagnosis)["ranks"][0]["trace"] is None


def test_the_last_whole_window_is_judged(tmp_path):
    """An earlier window, where the last one is cut off."""
    content = _training()
    (tmp_path / "worker0.1623143089861.pt.trace.json").write_bytes(content)
    (tmp_path / "worker0.1623143089862.pt.trace.json").write_bytes(content[: len(content) // 2])
    shown = diagnose(open_run(str(tmp_path))).shown
    assert shown.windows == 2
    assert shown.window is not None
    assert (shown.window.index, shown.is_cut_off) == (0, False)
    assert shown.device is not None
    assert any("truncated" in note for note in shown.notes)


def test_ranks_are_compared_without_a_file_that_is_cut_off(tmp_path):
    for rank in range(3):
        t = rank_of_job(rank, (1, 1, 6), steps=4)
        content = dump(t)
        name = f"rank{rank}.pt.trace.json"
        (tmp_path / name).write_bytes(content[: len(content) // 2] if rank == 0 else content)
    diagnosis = diagnose(open_run(str(tmp_path)))
    assert [rank.is_cut_off for rank in diagnosis.ranks] == [True, False, False]
    assert diagnosis.between is not None
    assert diagnosis.between.table["rank"].to_list() == [1, 2]
    assert diagnosis.between.straggler == 2
    assert [one.rank for one in diagnosis.findings if one.id == "trace-incomplete"] == [0]
