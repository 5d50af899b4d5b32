"""A finding above one of a larger saving says why, in every output."""

from __future__ import annotations

import dataclasses
import io
import json

import pytest
from rich.console import Console
from tests.support.gpu_trace import GpuTrace, ms
from tests.support.planted import dump, products
from tests.support.rendered import (
    diagnosis_to_html,
    diagnosis_to_markdown,
    print_diagnosis,
    print_summary,
)

from stepscope.advice.diagnosis import Diagnosis, diagnose
from stepscope.opening.reader import open_run
from stepscope.report.diagnosis import to_json as diagnosis_to_dict

WHY = "above launch-bound, because most of that comes from it"


@pytest.fixture(scope="module")
def diagnosis(tmp_path_factory) -> Diagnosis:
    t = GpuTrace()
    for _ in range(3):
        with t.step():
            t.data_wait(ms(10))
            products(t, 4)
            t.sync()
    path = tmp_path_factory.mktemp("placed") / "trace.pt.trace.json"
    path.write_bytes(dump(t))
    found = diagnose(open_run(str(path)))
    finding = dataclasses.replace(found.findings[0], placed=WHY)
    return dataclasses.replace(found, findings=(finding, *found.findings[1:]))


def _printed(show, diagnosis: Diagnosis) -> str:
    out = io.StringIO()
    show(diagnosis, Console(file=out, width=200))
    return out.getvalue()


def test_every_output_says_why(diagnosis):
    assert f"({WHY})" in _printed(print_summary, diagnosis)
    assert WHY in _printed(print_diagnosis, diagnosis)
    assert f"\n- placed: {WHY}\n" in diagnosis_to_markdown(diagnosis)
    assert WHY in diagnosis_to_html(diagnosis)
    first, *others = json.loads(json.dumps(diagnosis_to_dict(diagnosis), default=str))["findings"]
    assert first["placed"] == WHY
    assert all(one["placed"] == "" for one in others)
