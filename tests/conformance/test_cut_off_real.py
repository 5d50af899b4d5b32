"""Real traces without their end: the step that a report states is true of the whole file."""

from __future__ import annotations

import gzip

import pytest
from tests.support.annotated_steps import means_of_whole_steps
from tests.support.real_traces import path_of

from stepscope.advice.diagnosis import diagnose
from stepscope.opening.reader import open_run


@pytest.mark.parametrize(
    "name",
    [
        "a100_nccl_train/trace.json.gz",
        "amd_resnet_ddp_4rank/rank0.pt.trace.json.gz",
        "v100_dataloader_contrast/num_workers_0_worker0.1623143089861.pt.trace.json.gz",
        pytest.param("v100_train_5steps/trace.json.gz", marks=pytest.mark.slow),
    ],
)
def test_the_step_of_a_trace_without_its_end_is_right_or_unknown(name, tmp_path):
    content = gzip.decompress(path_of(name).read_bytes())
    true = means_of_whole_steps(content)
    stated = []
    for share in (0.1, 0.4, 0.6, 0.8, 0.95):
        path = tmp_path / f"{share}.json"
        path.write_bytes(content[: int(len(content) * share)])
        diagnosis = diagnose(open_run(str(path)))
        assert diagnosis.shown.partition is None
        assert [one.id for one in diagnosis.findings] == ["trace-incomplete"]
        stated.append(diagnosis.shown.step_ns)
    assert stated[-1] is not None
    for step_ns in stated:
        assert step_ns is None or any(abs(step_ns / 1e6 - mean) < 1e-4 for mean in true)
