"""Numbers beside the tables of an answer: each is named so that it can stand alone."""

from __future__ import annotations

import dataclasses
import io
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from rich.console import Console
from tests.support.rendered import print_blocks
from tests.support.viewer import training

from stepscope.analysis.questions import QUESTIONS, question
from stepscope.report.answer import number_labels, numbers_of, table_blocks
from stepscope.report.cells import label, shown
from stepscope.report.outputs import Layout

ALONE = [one for one in QUESTIONS if not one.over_ranks]


@dataclass(frozen=True)
class Result:
    wait_ns: int = 1500
    short_ns: int = field(default=2000, metadata={"label": "time of short kernels"})


def test_a_label_is_that_of_the_field_or_its_name():
    assert number_labels(Result()) == {"wait_ns": "wait", "short_ns": "time of short kernels"}


def test_people_read_the_labels():
    text = io.StringIO()
    print_blocks(table_blocks(Result(), question("kernels"), Layout()), Console(file=text))
    assert text.getvalue() == "wait: 1.50 µs\ntime of short kernels: 2.00 µs\n"


@pytest.mark.parametrize("asked", ALONE, ids=lambda one: one.name)
def test_labels_of_an_answer_differ_and_hide_no_field_behind_a_unit(asked):
    result = asked.ask(training().load())
    labels = [number_labels(result)[name] for name in numbers_of(result)]
    assert len(set(labels)) == len(labels)
    assert not [text for text in labels if "_" in text]


def test_numbers_of_kernels_say_what_they_count():
    labels = number_labels(question("kernels").ask(training().load()))
    for name in ("work_ns", "short_ns", "short_share", "tensor_core_ns", "matrix_ns"):
        assert labels[name] != label(name)


def test_the_device_of_host_memory_is_the_host():
    assert shown("device", -1) == "host"
    assert shown("device", 0) == "0"
    assert shown("step", -1) == "-1"


def test_the_partition_of_a_record_has_no_scope_of_a_window(tmp_path):
    from tests.support.planted import SCENARIOS
    from tests.support.step_records import step_records, write_run

    from stepscope.advice.diagnosis import diagnose
    from stepscope.report.diagnosis.sentences import partition_scope

    path = tmp_path / "trace.json"
    path.write_bytes(SCENARIOS[0].build().json())
    of_trace = diagnose(path).shown
    assert partition_scope(of_trace).startswith("Scope: steps ")
    of_record = diagnose(write_run(tmp_path / "run", {0: step_records([100] * 20)})).shown
    assert of_record.steps is not None
    fitted = dataclasses.replace(of_trace, steps=of_record.steps)
    assert partition_scope(fitted) == partition_scope(of_trace)
    whole = SimpleNamespace(scope=of_trace.scope, steps=of_record.steps, is_fitted=False)
    assert partition_scope(whole) == ""
