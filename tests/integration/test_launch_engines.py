"""`stepscope run` on scripts whose optimizer belongs to an engine of DeepSpeed's."""

from __future__ import annotations

import importlib.util

import pytest
from tests.support.launching import (
    ALONE_UNDER_DEEPSPEED,
    HEAD,
    free_port,
    paths_of_this_process,
    plainly,
    recorded,
    results_of,
)

from stepscope import open_run

PACKAGE = {
    "deepspeed/__init__.py": "import torch\nfrom deepspeed.runtime.engine import DeepSpeedEngine\n",
    "deepspeed/runtime/__init__.py": "",
    "deepspeed/runtime/engine.py": """
import torch


class DeepSpeedEngine(torch.nn.Module):
    def __init__(self, module, optimizer, accumulation, overflows=()):
        super().__init__()
        self.module, self.optimizer, self.accumulation = module, optimizer, accumulation
        self.overflows = overflows
        self.micro_steps = self.global_steps = 0
        for parameter in module.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        optimizer.zero_grad()

    def forward(self, x):
        return self.module(x)

    def backward(self, loss):
        (loss / self.accumulation).backward()

    def step(self):
        self.micro_steps += 1
        if self.micro_steps % self.accumulation:
            return
        if self.global_steps not in self.overflows:
            groups = self.optimizer.param_groups
            for group in groups:
                self.optimizer.param_groups = [group]
                self.optimizer.step()
            self.optimizer.param_groups = groups
        self.optimizer.zero_grad()
        self.global_steps += 1
""",
}
"""An engine as DeepSpeed's are: a step while it is made, one for each group of parameters, and none
where an overflow leaves the update out."""

STAND_IN = (
    HEAD
    + """
import deepspeed

model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.AdamW([{"params": [p]} for p in model.parameters()])
engine = deepspeed.DeepSpeedEngine(model, optimizer, 2, overflows=(1, 4))
for (x,) in DataLoader(TensorDataset(torch.randn(96, 16)), batch_size=4):
    engine.backward(engine(x).square().mean())
    engine.step()
tell(engine.global_steps, digest(model))
"""
)
REAL = (
    HEAD
    + """
import deepspeed

accumulate, stage, *kinds = sys.argv[1:]
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
groups = [
    {"params": [p for p in model.parameters() if p.ndim == number], "weight_decay": 0.1 * number}
    for number in (1, 2)
]
config = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": int(accumulate),
    "zero_optimization": {"stage": int(stage), "sub_group_size": 200},
    "bf16": {"enabled": "bf16" in kinds},
}
engine, _, loader, _ = deepspeed.initialize(
    model=model,
    model_parameters=model.parameters(),
    optimizer=torch.optim.AdamW(groups, lr=1e-2),
    training_data=TensorDataset(torch.randn(8 * 24, 16)),
    config=config,
)
kind = next(engine.parameters()).dtype
for (x,) in loader:
    loss = engine(x.to(kind)).square().mean()
    engine.backward(loss)
    engine.step()
tell(engine.global_steps, loss.item())
torch.distributed.destroy_process_group()
"""
)
PIPELINE = (
    HEAD
    + """
import deepspeed
from deepspeed.pipe import PipelineModule

deepspeed.init_distributed("gloo")
layers = [nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)]
net = PipelineModule(layers=layers, loss_fn=nn.functional.mse_loss, num_stages=1)
groups = [{"params": [p]} for p in net.parameters()]
data = TensorDataset(torch.randn(8 * 12, 16), torch.randn(8 * 12, 4))
engine, *_ = deepspeed.initialize(
    model=net,
    optimizer=torch.optim.AdamW(groups, lr=1e-2),
    training_data=data,
    config={
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 2,
        "zero_optimization": {"stage": 1},
        "steps_per_print": 1000,
    },
)
for _ in range(6):
    loss = engine.train_batch()
tell(engine.global_steps, loss.item())
torch.distributed.destroy_process_group()
"""
)


def record_of(folder, ended, steps):
    """The rank of the only run, with as many steps as the engine has counted."""
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert int(results_of(ended)[0].split()[1]) == steps
    (rank,) = open_run(folder / "profiles").ranks
    assert rank.manifest.steps == len(rank.steps) == steps
    assert rank.manifest.step_unit == "optimizer step"
    for step in rank.steps:
        assert step.kind == "train"
        outermost = sum(ns for name, ns in step.phases.items() if "/" not in name)
        assert step.data_wait_ns + outermost <= step.dur_ns
        assert {"forward", "backward", "optimizer"} <= set(step.phases)
    return rank


def test_an_engine_counts_and_not_its_optimizer(tmp_path):
    for name, text in PACKAGE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    bare = plainly(tmp_path, STAND_IN)
    ours = recorded(tmp_path, STAND_IN)
    assert results_of(ours) == results_of(bare) != []
    record_of(tmp_path, ours, 12)
    assert "gradients are accumulated: 2 batches" in ours.stderr


@pytest.mark.parametrize(
    ("accumulate", "stage", "kind", "steps"),
    [
        pytest.param(4, 1, "", 6, id="a call of the optimizer for each group"),
        pytest.param(2, 3, "", 12, id="one for each part of a group"),
        pytest.param(2, 0, "bf16", 12, id="one while the engine is made"),
    ],
)
def test_the_real_engine_is_counted_right_and_gives_the_same(
    tmp_path, accumulate, stage, kind, steps
):
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed")
    words = [accumulate, stage, kind]
    more = {**ALONE_UNDER_DEEPSPEED, "PYTHONPATH": paths_of_this_process()}
    bare = plainly(tmp_path, REAL, words, MASTER_PORT=str(free_port()), **more)
    ours = recorded(tmp_path, REAL, words, MASTER_PORT=str(free_port()), **more)
    assert results_of(ours) == results_of(bare)
    record_of(tmp_path, ours, steps)
    assert f"gradients are accumulated: {accumulate} batches" in ours.stderr


def test_a_pipeline_of_the_real_one(tmp_path):
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed")
    more = {**ALONE_UNDER_DEEPSPEED, "PYTHONPATH": paths_of_this_process()}
    bare = plainly(tmp_path, PIPELINE, MASTER_PORT=str(free_port()), **more)
    ours = recorded(tmp_path, PIPELINE, MASTER_PORT=str(free_port()), **more)
    assert results_of(ours) == results_of(bare)
    record_of(tmp_path, ours, 6)
