"""A planted late rank in real jobs: found in the run's own verdict and in the report."""

from __future__ import annotations

import pytest
from tests.support.one_step import check_run
from tests.support.ranks import torchrun

from stepscope import open_run
from stepscope.skew.rank_skew import OFF_CPU

# How long a rank takes is a busy machine's affair: the late one waits until the others have come
# to where they meet, and then for 30 ms more. Ranks tell by a file each.
MEETING = """
from stepscope.skew import rank_skew

rank_skew._READING_S = 200.0  # for the verdict at the end
here = [os.open(f"{output}.here{number}", os.O_RDWR | os.O_CREAT) for number in range(world)]

def come(step):
    os.pwrite(here[rank], b"%8d" % (step + 1), 0)

def come_late(step):
    while any(int(os.pread(here[r], 8, 0) or 0) <= step for r in range(world) if r != rank):
        time.sleep(0.001)
    time.sleep(0.03)
"""

DATA_PARALLEL = """
torch.manual_seed(1)
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
with stepscope.Profiler(
    output_dir=output, activities="cpu", wait=30, active=2, auto_phases=True
) as profiler:
    for step, batch in enumerate(profiler.watch([torch.randn(8, 16)] * 40)):
        loss = net(batch).square().mean()
        (come_late if rank == 1 else come)(step)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""

COLLECTIVES = """
with stepscope.Profiler(
    output_dir=output, activities="cpu", wait=30, active=2, auto_phases=True
) as profiler:
    for step in range(40):
        (come_late if rank == 2 else come)(step)
        train_step(model, step)
        profiler.step()
"""

BORDERS = """
with stepscope.Profiler(output_dir=output, activities="cpu", wait=10**6) as profiler:
    for step in range(40):
        train_step(model, step)
        if rank == 0:
            come_late(step)
        profiler.step()
        if rank:
            come(step)
"""


@pytest.mark.parametrize(
    ("body", "ranks", "late", "basis"),
    [
        pytest.param(DATA_PARALLEL, 3, 1, "backward", id="data-parallel"),
        pytest.param(COLLECTIVES, 3, 2, "communication", id="collectives", marks=pytest.mark.slow),
        pytest.param(
            BORDERS, 3, 0, "communication", id="borders-with-auto-phases", marks=pytest.mark.slow
        ),
        pytest.param(BORDERS, 3, 0, "step borders", id="borders", marks=pytest.mark.slow),
    ],
)
def test_a_planted_late_rank_is_found(tmp_path, body, ranks, late, basis):
    if basis == "communication" and body is BORDERS:
        body = body.replace("wait=10**6", "wait=10**6, auto_phases=True")
    output = tmp_path / "out"
    result = torchrun(tmp_path, MEETING + body, ranks, output=output)
    assert result.returncode == 0, result.stderr
    run = open_run(output)
    diagnosis = check_run(output)
    skew = diagnosis.skew
    if basis == "step borders":
        assert skew.basis in {basis, OFF_CPU}
    assert skew.late == (late,)
    assert skew.is_notable
    # 30 ms were planted; a busy machine delays every rank now and then.
    assert skew.wait_ns > 15_000_000
    assert skew.last_share > 0.8
    assert "late-rank" in {finding.id for finding in diagnosis.findings}
    # What waits for a late rank is no Python, although nothing of it is recorded.
    evidence = {item.value for finding in diagnosis.findings for item in finding.evidence}
    assert not evidence & {"in backward", "in communication"}
    assert not any("after c10d::" in str(value) for value in evidence)
    assert f"rank {late} makes the others wait" in result.stderr
    assert f"rank {late} makes the others wait" in run.ranks[0].manifest.verdict
