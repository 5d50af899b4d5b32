"""What a loop does between the model's call and backward is shown apart from forward."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.step_records import MS, step_records, write_run

from stepscope.advice.diagnosis import diagnose
from stepscope.opening.reader import open_run
from stepscope.report.diagnosis.blocks import document
from stepscope.report.document import Bars
from stepscope.report.outputs import Layout

BETWEEN = "between forward and backward"


def judge(tmp_path, after_ms: float):
    records = step_records([10.0] * 20, phases_ms={"forward": 7.0, "backward": 2.0})
    records = [replace(one, after_call_ns=round(after_ms * MS)) for one in records]
    return diagnose(open_run(write_run(tmp_path, {0: records})))


@pytest.mark.parametrize(
    ("after_ms", "parts", "verdict"),
    [
        (0.9, {"forward": 70, "backward": 20, "other": 10}, "nothing stands out: 70% of the step"),
        (
            5.0,
            {"forward": 20, BETWEEN: 50, "backward": 20, "other": 10},
            f"50% of the step is {BETWEEN}, and no single finding saves a tenth of it",
        ),
    ],
)
def test_a_batch_made_after_the_models_call_is_no_forward(tmp_path, after_ms, parts, verdict):
    diagnosis = judge(tmp_path, after_ms)
    assert diagnosis.verdict.startswith(verdict)
    for is_full in (False, True):
        blocks = document(diagnosis, Layout(is_full=is_full))
        (bars,) = (one for one in blocks if isinstance(one, Bars))
        shown = bars.partition
        assert {one.name: round(100 * shown.share(one)) for one in shown.parts[1:]} == parts
    assert diagnosis.shown.partition is diagnosis.shown.steps.partition  # ranks compare this
