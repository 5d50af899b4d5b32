"""A planted late rank in real jobs: found in the run's own verdict and in the report."""

from __future__ import annotations

import pytest
from tests.support.ranks import torchrun

from stepscope import open_run
from stepscope.advice.diagnosis import diagnose

DATA_PARALLEL = """
torch.manual_seed(1)
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
with stepscope.Profiler(
    output_dir=output, activities="cpu", wait=30, active=2, auto_phases=True
) as profiler:
    for batch in profiler.watch([torch.randn(8, 16)] * 40):
        loss = net(batch).square().mean()
        if rank == 1:
            time.sleep(0.03)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""

COLLECTIVES = """
with stepscope.Profiler(
    output_dir=output, activities="cpu", wait=30, active=2, auto_phases=True
) as profiler:
    for step in range(40):
        if rank == 2:
            time.sleep(0.03)
        train_step(model, step)
        profiler.step()
"""

BORDERS = """
with stepscope.Profiler(output_dir=output, activities="cpu", wait=10**6) as profiler:
    for step in range(40):
        train_step(model, step)
        if rank == 0:
            time.sleep(0.03)
        profiler.step()
"""


@pytest.mark.parametrize(
    ("body", "ranks", "late", "basis"),
    [
        pytest.param(DATA_PARALLEL, 2, 1, "backward", id="data-parallel"),
        pytest.param(COLLECTIVES, 3, 2, "communication", id="collectives", marks=pytest.mark.slow),
        pytest.param(
            BORDERS, 2, 0, "communication", id="borders-with-auto-phases", marks=pytest.mark.slow
        ),
        pytest.param(BORDERS, 2, 0, "step borders", id="borders"),
    ],
)
def test_a_planted_late_rank_is_found(tmp_path, body, ranks, late, basis):
    if basis == "communication" and body is BORDERS:
        body = body.replace("wait=10**6", "wait=10**6, auto_phases=True")
    output = tmp_path / "out"
    result = torchrun(tmp_path, body, ranks, output=output)
    assert result.returncode == 0, result.stderr
    run = open_run(output)
    diagnosis = diagnose(run)
    skew = diagnosis.skew
    if basis == "step borders":
        assert skew.basis == basis
    assert skew.late == (late,)
    assert skew.is_notable
    # 30 ms were planted; a busy machine delays the other ranks now and then.
    assert 15_000_000 < skew.wait_ns < 60_000_000
    assert "late-rank" in {finding.id for finding in diagnosis.findings}
    # What waits for a late rank is no Python, although nothing of it is recorded.
    evidence = {item.value for finding in diagnosis.findings for item in finding.evidence}
    assert not evidence & {"in backward", "in communication"}
    assert not any("after c10d::" in str(value) for value in evidence)
    assert f"rank {late} comes late: the others wait" in result.stderr
    assert f"rank {late} comes late" in run.ranks[0].manifest.verdict
