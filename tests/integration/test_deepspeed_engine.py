"""A real DeepSpeed engine on the CPU: its steps, its texts, and the same losses as without us."""

from __future__ import annotations

import importlib.util
import json
import re

import pytest
from tests.support.guides import run_script
from tests.support.launching import ALONE_UNDER_DEEPSPEED, free_port
from tests.support.runs import manifest_of, rank_directory, steps_in_trace

from stepscope import open_run

if importlib.util.find_spec("deepspeed") is None:
    pytest.skip("deepspeed is not installed", allow_module_level=True)
pytestmark = pytest.mark.timeout(4000)

LIMIT_S = 1200
"""On a busy machine, importing DeepSpeed alone takes minutes."""
SCRIPT = """
    import contextlib
    import json
    import sys

    import torch

    import deepspeed
    import stepscope
    from stepscope.adapters.deepspeed import follow

    wanted = json.loads(sys.argv[1])
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        config={
            "train_micro_batch_size_per_gpu": 8,
            "gradient_accumulation_steps": 2,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
            "zero_optimization": {"stage": wanted.pop("stage", 1)},
            **wanted.pop("config", {}),
        },
    )
    names = set(vars(engine))
    losses = []
    profiler = stepscope.Profiler(output_dir="profiles", wait=2, warmup=1, active=2, **wanted)
    with profiler:
        follow(engine, profiler)
        for batch in profiler.watch([torch.randn(8, 16) for _ in range(14)]):
            loss = engine(batch).square().mean()
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
        engine.eval()
        engine(batch)
    assert set(vars(engine)) == names, set(vars(engine)) - names
    print("LOSSES", json.dumps(losses))
    torch.distributed.destroy_process_group()
"""
FLOPS = 2 * 8 * 16 * 32 + 2 * 8 * 32 * 4
PARAMETERS = 16 * 32 + 32 + 32 * 4 + 4
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def losses_of(result):
    assert result.returncode == 0, result.stderr[-4000:]
    return json.loads(re.search(r"^LOSSES (.*)$", result.stdout, re.MULTILINE).group(1))


def train(folder, port, **wanted):
    return run_script(
        folder,
        SCRIPT,
        [json.dumps(wanted)],
        timeout=LIMIT_S,
        MASTER_PORT=str(port),
        **ALONE_UNDER_DEEPSPEED,
    )


@pytest.fixture(scope="module")
def bare_losses(tmp_path_factory, free_ports):
    return losses_of(train(tmp_path_factory.mktemp("bare"), next(free_ports), enabled=False))


@pytest.fixture(scope="module")
def free_ports():
    def ports():
        while True:
            yield free_port()

    return ports()


def test_steps_texts_and_losses(tmp_path, bare_losses, free_ports):
    result = train(
        tmp_path,
        next(free_ports),
        deepspeed_flops=True,
        deepspeed_flops_step=6,
        deepspeed_memory=True,
    )
    assert losses_of(result) == bare_losses
    (rank,) = open_run(tmp_path / "profiles").ranks
    assert [step.step for step in rank.steps] == list(range(7))
    for step in rank.steps:
        assert {"forward", "backward", "optimizer"} <= set(step.phases)
        assert sum(step.phases.values()) + step.data_wait_ns <= step.dur_ns
    assert steps_in_trace(rank.windows[0].trace_path) == [3, 4]

    folder = rank_directory(tmp_path / "profiles")
    texts = {a.kind: (folder / a.path).read_text() for a in rank.manifest.artifacts}
    assert set(texts) == {"deepspeed_flops", "deepspeed_memory"}
    profile = texts["deepspeed_flops"]
    assert "DeepSpeed Flops Profiler" in profile
    assert "Profile Summary at step 6" in profile
    assert re.search(rf"params per GPU: +{PARAMETERS} ", profile)
    flops = float(re.search(r"fwd flops per GPU: +([\d.]+) K", profile).group(1))
    assert flops == pytest.approx(FLOPS / 1000, rel=0.05)  # with biases and the activation
    assert f"{PARAMETERS} = 100% Params" in profile
    # The outermost module is timed to its end: it takes no longer than the forward phase.
    latency_ms = re.search(r"fwd latency: +([\d.]+) (us|ms)", profile)
    nanoseconds = float(latency_ms.group(1)) * {"us": 1e3, "ms": 1e6}[latency_ms.group(2)]
    assert nanoseconds <= rank.steps[6].phases["forward"]
    memory = texts["deepspeed_memory"]
    assert len(re.findall(r"^After forward of step \d+$", memory, re.MULTILINE)) == 15
    assert len(re.findall(r"^After step of step \d+$", memory, re.MULTILINE)) == 7
    assert "CPU Virtual Memory:" in memory
    assert "After backward of step 3" in result.stdout


def test_micro_batches_as_steps(tmp_path, bare_losses, free_ports):
    assert losses_of(train(tmp_path, next(free_ports), step_unit="micro-batch")) == bare_losses
    (rank,) = open_run(tmp_path / "profiles").ranks
    assert len(rank.steps) == 14
    assert rank.manifest.artifacts == ()


@pytest.mark.slow
def test_two_ranks_and_gradients_in_parts(tmp_path):
    more = {**ALONE_UNDER_DEEPSPEED, "MASTER_PORT": ""}
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        del more[name]
    wanted = {
        "stage": 2,
        "deepspeed_flops": True,
        "ranks": [1],
    }
    result = run_script(
        tmp_path, SCRIPT, [json.dumps(wanted)], before=TORCHRUN, timeout=LIMIT_S, **more
    )
    assert result.returncode == 0, result.stderr[-4000:]
    run = open_run(tmp_path / "profiles")
    assert [len(rank.steps) for rank in run.ranks] == [7, 7]
    kinds = [
        {item.kind for item in manifest_of(tmp_path / "profiles", rank).artifacts}
        for rank in (0, 1)
    ]
    assert kinds == [set(), {"deepspeed_flops"}]
    profile = (rank_directory(tmp_path / "profiles", 1) / "profiler_ds.txt").read_text()
    assert re.search(r"world size: +2", profile)


PIPELINE = """
    import torch

    import deepspeed
    import stepscope
    from deepspeed.pipe import LayerSpec, PipelineModule
    from stepscope.adapters.deepspeed import follow

    deepspeed.init_distributed("gloo")
    torch.manual_seed(0)
    layers = [LayerSpec(torch.nn.Linear, 16, 32), LayerSpec(torch.nn.Linear, 32, 4)]
    model = PipelineModule(
        layers=layers, num_stages=1, loss_fn=lambda out, wanted: (out - wanted).square().mean()
    )
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=list(model.parameters()),
        config={
            "train_micro_batch_size_per_gpu": 8,
            "gradient_accumulation_steps": 3,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
        },
    )
    data = iter([(torch.randn(8, 16), torch.randn(8, 4)) for _ in range(18)])
    with stepscope.Profiler(
        output_dir="profiles", wait=2, warmup=1, active=2, deepspeed_flops=True
    ) as profiler:
        follow(engine, profiler)
        for _ in range(6):
            engine.train_batch(data)
    torch.distributed.destroy_process_group()
"""


def test_a_pipelines_batches_are_steps(tmp_path, free_ports):
    result = run_script(
        tmp_path,
        PIPELINE,
        [],
        timeout=LIMIT_S,
        MASTER_PORT=str(next(free_ports)),
        **ALONE_UNDER_DEEPSPEED,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    (rank,) = open_run(tmp_path / "profiles").ranks
    assert len(rank.steps) == 6
    assert steps_in_trace(rank.windows[0].trace_path) == [3, 4]
    profile = (rank_directory(tmp_path / "profiles") / "profiler_ds.txt").read_text()
    flops = float(re.search(r"fwd flops per GPU: +([\d.]+) K", profile).group(1))
    assert flops == pytest.approx(3 * FLOPS / 1000, rel=0.05)
