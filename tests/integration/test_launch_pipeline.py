"""`stepscope run` on a pipeline of two stages: each waits for the other, and neither is late."""

from __future__ import annotations

import statistics

from tests.support.launching import HEAD, TORCHRUN, recorded

from stepscope import open_run
from stepscope.advice.diagnosis import diagnose

COMPUTES_S = 0.02
PIPELINE = (
    HEAD
    + """
from torch import distributed

distributed.init_process_group("gloo")
rank = distributed.get_rank()
model = nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(24):
    if rank == 0:
        sent = model(torch.randn(4, 16))
        handed_over = distributed.isend(sent.detach(), 1)
        gradient = torch.empty(4, 16)
        distributed.irecv(gradient, 1).wait()
        handed_over.wait()
        sent.backward(gradient)
    else:
        received = torch.empty(4, 16)
        distributed.irecv(received, 0).wait()
        received.requires_grad_()
        loss = model(received).square().mean()
        time.sleep(0.02)  # the last stage is the longer one
        loss.backward()
        # The first stage begins to step once it has this: it comes after the last.
        distributed.isend(received.grad, 0).wait()
    optimizer.step()
    optimizer.zero_grad()
tell(rank)
distributed.destroy_process_group()
"""
)


def test_stages_of_a_pipeline_are_one_run_and_none_is_called_late(tmp_path):
    result = recorded(
        tmp_path, PIPELINE, before=TORCHRUN, options=("--no-report", "--ranks", "all")
    )
    assert result.returncode == 0, result.stderr
    run = open_run(tmp_path / "profiles")
    assert [rank.rank for rank in run.ranks] == [0, 1]
    first, second = run.ranks
    assert first.manifest.exchanges
    assert second.manifest.exchanges
    waits = [step.phases.get("communication", 0) / 1e9 for step in first.steps]
    assert statistics.median(waits) > 0.8 * COMPUTES_S
    findings = diagnose(run).findings
    assert not {"late-rank", "pipeline-bubble"} & {finding.id for finding in findings}
    of_first = {one.id: one.saving_ns or 0 for one in findings if one.rank == 0}
    assert of_first["exposed-communication"] > 0.5e9 * COMPUTES_S
    # To wake up takes a moment, which is no communication.
    assert of_first.get("cpu-bound-python", 0) < 0.5e9 * COMPUTES_S
