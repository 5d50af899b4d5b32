"""`stepscope run` on ten kinds of training: the steps and phases of a stopwatch in the script.

A step ends inside `optimizer.step()`, in a hook of torch, or with `--step-on forward` inside the
call of the model. A stopwatch around these calls would also see what Stepscope does at the end of a
step, which a training without it does not: it stands within them.
"""

from __future__ import annotations

import importlib.util
import json
import statistics

import pytest
from click.testing import CliRunner
from tests.support.launching import HEAD, TORCHRUN, paths_of_this_process, recorded

from stepscope import open_run
from stepscope.commands.report import command as report

pytestmark = pytest.mark.slow

FIRST = 10
"""The step from which they are compared: earlier ones warm up, or are recorded in detail."""
SHARE, LEAST_NS = 0.05, 100_000
"""How far they may differ. The second is for each pass through the model: what frameworks do around
it belongs to a phase in the record."""

LOOP = (
    HEAD
    + """
from tests.support.stopwatch import restart, step, timed

def net(width=512):
    first, second = nn.Linear(256, width), nn.Linear(width, width)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Linear(width, 10))

def data(steps, size=32):
    return TensorDataset(torch.randn(steps * size, 256), torch.randint(0, 10, (steps * size,)))

def learn(model, optimizer, x, y, steps=True):
    with timed("forward"):
        loss = nn.functional.cross_entropy(model(x), y)
    with timed("backward"):
        loss.backward()
    if steps:
        optimizer.step()
        optimizer.zero_grad()
        step()

def watched(kind):
    # The stopwatch stands within the hooks.
    class Watched(kind):
        def step(self, closure=None):
            def apart():
                with timed():
                    return closure()

            with timed("optimizer"):
                return super().step(apart if closure else None)
        def zero_grad(self, set_to_none=True):
            with timed("optimizer"):
                super().zero_grad(set_to_none)
    return Watched

AdamW = watched(torch.optim.AdamW)
model = net()
optimizer = AdamW(model.parameters())
"""
)
PLAIN = """
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 16 * 40
    def __getitem__(self, i):
        time.sleep(0.002)
        return torch.randn(256), i % 10

batches = iter(DataLoader(Slow(), batch_size=16))
for _ in range(40):
    with timed("input"):
        x, y = next(batches)
    learn(model, optimizer, x, y)
"""
IN_THE_LOOP = """
import random

def get_batch():
    return torch.tensor([[random.random() for _ in range(256)] for _ in range(64)])

for _ in range(40):
    learn(model, optimizer, get_batch(), torch.randint(0, 10, (64,)))
"""
ACCUMULATED = """
for number, (x, y) in enumerate(DataLoader(data(160), 32)):
    learn(model, optimizer, x, y, steps=number % 4 == 3)
"""
EVALUATED = """
for epoch in range(2):
    for x, y in DataLoader(data(20), 32):
        learn(model, optimizer, x, y)
    model.eval()
    with torch.no_grad():
        for x, y in DataLoader(data(20), 32):
            model(x)
            time.sleep(0.005)
    model.train()
    restart()
"""
GAN = """
other = net()
second = AdamW(other.parameters())
for x, y in DataLoader(data(40), 32):
    learn(other, second, x, y, steps=False)
    second.step()
    second.zero_grad()
    learn(model, optimizer, x, y)
"""
CLOSURE = """
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
for x, y in DataLoader(data(40), 32):
    def closure():
        optimizer.zero_grad()
        time.sleep(0.002)  # as zero_grad takes of many parameters: no part of forward
        with timed("forward"):
            loss = nn.functional.cross_entropy(model(x), y)
        with timed("backward"):
            loss.backward()
        return loss
    optimizer.step(closure)
    step()
"""
RL = """
policy = nn.Linear(8, 4)
optimizer = watched(torch.optim.Adam)(policy.parameters())
for _ in range(40):
    seen, state = [], torch.randn(8)
    for _ in range(20):
        choice = torch.distributions.Categorical(logits=policy(state))
        seen.append(choice.log_prob(choice.sample()))
        until = time.perf_counter() + 0.0005  # the environment
        while time.perf_counter() < until:
            pass
        state = torch.randn(8)
    loss = -torch.stack(seen).sum()
    with timed("backward"):
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    step()
"""
INFERENCE = """
with torch.no_grad():
    for x, y in DataLoader(data(40), 32):
        with timed("forward"):
            y = model(x)
        time.sleep(0.002)  # what is made of the answer: no part of forward
        step()
"""
SCORED = """
class Watched(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = model
    def forward(self, x):
        with timed("forward"):
            return self.net(x)

model = Watched()
with torch.no_grad():
    for _ in range(40):
        x = torch.randn(32, 256)
        model(x)
        step()
        time.sleep(0.002)  # what is made of the answer: no part of forward
"""
COMPILED = "model = torch.compile(model)\n" + EVALUATED.replace("range(2)", "range(3)")
RANKS = """
torch.distributed.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(model)
for x, y in DataLoader(data(40), 32):
    if torch.distributed.get_rank() == 1:
        time.sleep(0.03)
    learn(model, optimizer, x, y)
torch.distributed.destroy_process_group()
"""
TRAINER = """
from tests.support.frameworks import trainer_of
from transformers import Trainer, TrainerCallback

class Watched(TrainerCallback):
    def on_step_end(self, *arguments, **more):
        step()

plain = Trainer.compute_loss

def compute_loss(*arguments, **more):
    with timed("forward"):
        return plain(*arguments, **more)

Trainer.compute_loss = compute_loss
trainer_of("out", [Watched()], max_steps=40, gradient_accumulation_steps=ACCUMULATION).train()
"""
ACCELERATE = """
from accelerate import Accelerator

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data(160), 32))
for x, y in loader:
    with accelerator.accumulate(model):
        with timed("forward"):
            loss = nn.functional.cross_entropy(model(x), y)
        with timed("backward"):
            accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if accelerator.sync_gradients:
            step()
"""
LIGHTNING = """
import lightning

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = model
    def training_step(self, batch, number):
        x, y = batch
        with timed("forward"):
            return nn.functional.cross_entropy(self.net(x), y)
    def backward(self, loss):
        with timed("backward"):
            loss.backward()
    def on_train_batch_end(self, *arguments):
        step()
    def configure_optimizers(self):
        return AdamW(self.parameters())

quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", **quiet)
trainer.fit(Module(), DataLoader(data(40), 32))
"""


def compare(folder, body, *, steps=40, passes=1, options=()):
    """Run a script; hold the record of each step to the stopwatch, and return the findings."""
    ended = recorded(
        folder,
        LOOP + body,
        options=("--no-report", *options),
        PYTHONPATH=paths_of_this_process(),
    )
    assert ended.returncode == 0, ended.stderr
    watched = json.loads((folder / "stopwatch.json").read_text())
    assert len(watched) == steps
    records = [one for one in open_run(folder / "profiles").ranks[0].steps if one.is_whole_step]
    # The first step of a loop without a DataLoader begins before anything is seen of it.
    assert steps - 1 <= len(records) <= steps

    def agree(name, seen, noted):
        # On a busy machine, either may lose its CPU between the two readings, and time moves into
        # the next step where a framework ends its steps a little later: most steps agree, or all
        # of them together.
        each = statistics.median(abs(a - b) for a, b in zip(seen, noted, strict=True))
        together = abs(sum(seen) - sum(noted)) / len(seen)
        limit = max(SHARE * statistics.median(seen), passes * LEAST_NS)
        assert min(each, together) <= limit, name

    late = [one for one in records if one.step >= FIRST and one.window is None]
    rows = [watched[one.step] for one in late]
    agree("step", [row["step"] for row in rows], [one.dur_ns for one in late])
    for name in {name for row in rows for name in row} - {"step"}:
        noted = [one.data_wait_ns if name == "input" else one.phases.get(name, 0) for one in late]
        agree(name, [row.get(name, 0) for row in rows], noted)
    shown = CliRunner().invoke(report, [str(folder / "profiles"), "--format", "json"])
    assert shown.exit_code == 0, shown.output
    return {one["id"]: one for one in json.loads(shown.output)["findings"]}


@pytest.mark.parametrize(
    ("body", "options", "cause"),
    [
        pytest.param(PLAIN, (), "input-bound", id="plain"),
        pytest.param(IN_THE_LOOP, (), "cpu-bound-python", id="data-made-in-the-loop"),
        pytest.param(ACCUMULATED, (), None, id="accumulated"),
        pytest.param(EVALUATED, (), None, id="notebook-with-evaluation"),
        pytest.param(GAN, (), None, id="gan"),
        pytest.param(CLOSURE, (), None, id="closure"),
        pytest.param(RL, (), "cpu-bound-python", id="rl"),
        pytest.param(INFERENCE, ("--step-on", "batch"), None, id="inference"),
        pytest.param(SCORED, ("--step-on", "forward"), None, id="inference-without-a-loader"),
    ],
)
def test_a_script_of_torch(tmp_path, body, options, cause):
    found = compare(tmp_path, body, options=options)
    if "busy-cpus" not in found:  # on a busy machine the cause may be behind that
        assert cause is None or cause in found


def test_a_compiled_model(tmp_path):
    compare(tmp_path, COMPILED, steps=60)


@pytest.mark.parametrize("accumulation", [1, 8])
def test_the_trainer_of_transformers(tmp_path, accumulation):
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    compare(tmp_path, TRAINER.replace("ACCUMULATION", str(accumulation)), passes=accumulation)


@pytest.mark.parametrize("package", ["accelerate", "lightning"])
def test_other_frameworks(tmp_path, package):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    compare(tmp_path, {"accelerate": ACCELERATE, "lightning": LIGHTNING}[package], passes=4)


def test_a_slow_rank_is_named(tmp_path):
    ended = recorded(tmp_path, LOOP + RANKS, before=TORCHRUN, PYTHONPATH=paths_of_this_process())
    assert ended.returncode == 0, ended.stderr
    run = open_run(tmp_path / "profiles")
    assert [len([one for one in rank.steps if one.is_whole_step]) for rank in run.ranks] == [40, 40]
    shown = CliRunner().invoke(report, [str(tmp_path / "profiles"), "--format", "json"])
    document = json.loads(shown.output)
    if "busy-cpus" not in {one["id"] for one in document["findings"]}:
        assert "Rank 1 comes late" in document["verdict"]
