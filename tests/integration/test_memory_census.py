"""A training on the CPU with a census: its memory is named to the byte, and is else the same."""

from __future__ import annotations

import io
import json
import pickle
import subprocess
import sys
import textwrap

import polars as pl
import pytest
from tests.support.cuda_like import cuda_like
from tests.support.guides import environment
from tests.support.runs import manifest_of
from tests.support.warm_python import warm_python

from stepscope.analysis.memory.opening import open_memory
from stepscope.memory.load import load_snapshot
from stepscope.memory.questions.composition import composition, peak
from stepscope.memory.questions.growth import growth
from stepscope.memory.questions.moments import moment_of
from stepscope.memory.questions.timeline import timeline
from stepscope.memory.view import MemoryView, held_at

SCRIPT = textwrap.dedent(
    """
    import json, sys
    import torch
    import stepscope

    torch.manual_seed(0)
    torch.set_num_threads(1)
    kept = []


    class Block(torch.nn.Module):
        def __init__(self, width):
            super().__init__()
            self.attention = torch.nn.MultiheadAttention(width, 4, batch_first=True)
            self.norm = torch.nn.LayerNorm(width)
            self.feed = torch.nn.Sequential(
                torch.nn.Linear(width, 4 * width),
                torch.nn.GELU(),
                torch.nn.Linear(4 * width, width),
            )

        def forward(self, x):
            h = self.norm(x)
            x = x + self.attention(h, h, h, need_weights=False)[0]
            return x + self.feed(x)


    class Model(torch.nn.Module):
        def __init__(self, words=700, width=32):
            super().__init__()
            self.embedding = torch.nn.Embedding(words, width)
            self.blocks = torch.nn.ModuleList(Block(width) for _ in range(2))
            self.head = torch.nn.Linear(width, words)
            self.register_buffer("positions", torch.randn(16, width))

        def forward(self, tokens):
            x = self.embedding(tokens) + self.positions
            for block in self.blocks:
                x = block(x)
            return self.head(x)


    def remember(losses):
        kept.append(torch.zeros(30_000))


    def enlarge(logits):
        fat = torch.zeros(3_000_000)
        return logits + fat[:1] * 0


    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    census = sys.argv[2] == "census"
    with stepscope.Profiler(
        output_dir=sys.argv[1], skip_first=0, wait=0, warmup=1, active=4, with_stack=True,
        profile_memory=True, memory_census=census,
    ) as profiler:
        for step in range(7):
            optimizer.zero_grad()
            tokens = torch.randint(0, 700, (4, 16))
            logits = enlarge(model(tokens))
            loss = torch.nn.functional.cross_entropy(logits.view(-1, 700), tokens.view(-1))
            loss.backward()
            optimizer.step()
            remember(loss)
            losses.append(loss.item())
            profiler.step()
    # What autograd saves in one step, each storage once, without what is there anyway.
    saved = {}


    def pack(tensor):
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()


    there = [*model.parameters(), *model.buffers(), tokens]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        logits = model(tokens)
        loss = torch.nn.functional.cross_entropy(logits.view(-1, 700), tokens.view(-1))
    for tensor in there:
        saved.pop(tensor.untyped_storage().data_ptr(), None)
    state = [
        value
        for parameter in model.parameters()
        for value in optimizer.state[parameter].values()
    ]
    hooks = torch.nn.modules.module
    print(json.dumps({
        "losses": losses,
        "parameter": sum(p.nbytes for p in model.parameters()),
        "gradient": sum(p.grad.nbytes for p in model.parameters()),
        "optimizer_state": sum(value.nbytes for value in state),
        "buffer": sum(b.nbytes for b in model.buffers()),
        "input": tokens.nbytes,
        "saved": sum(saved.values()),
        "hooks": len(hooks._global_forward_hooks) + len(hooks._global_forward_pre_hooks),
    }))
    """
)


def train(folder, mode):
    script = folder / "train.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [warm_python(), str(script), str(folder / mode), mode],
        env=environment(), capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("census")
    return folder, train(folder, "census"), train(folder, "plain")


@pytest.fixture(scope="module")
def view(trained):
    return open_memory(str(trained[0] / "census")).view


def test_the_training_is_the_same(trained):
    _, with_census, plain = trained
    assert with_census["losses"] == plain["losses"]
    assert with_census["hooks"] == 0


def test_the_census_is_listed_as_itself_and_not_as_a_snapshot(trained):
    manifest = manifest_of(trained[0] / "census")
    assert "memory_census.jsonl" in [file.path for file in manifest.artifacts]
    assert manifest.snapshots == ()


def test_bytes_by_category_are_those_of_the_tensors(trained, view):
    known = trained[1]
    for step in (2, 3, 4):
        held = composition(view, moment_of(view, -1, f"step {step}"))
        found = dict(held.categories.select("category", "allocated_bytes").iter_rows())
        for kind in ("parameter", "gradient", "optimizer_state", "buffer"):
            assert found[kind] == known[kind], (step, kind)
        certain = held.categories.filter(
            pl.col("category").cast(pl.String).is_in(["parameter", "gradient", "optimizer_state"])
        )
        assert certain["certain_bytes"].equals(certain["allocated_bytes"].alias("certain_bytes"))


def test_activations_are_what_autograd_saves(trained, view):
    over_time = timeline(view, buckets=100_000).timeline
    most = over_time["activation_bytes"].max()
    assert most == pytest.approx(trained[1]["saved"], rel=0.05)


def test_tensors_have_their_names(view):
    held = composition(view, moment_of(view, -1, "step 3")).allocations
    names = set(held["name"].drop_nulls())
    assert {"embedding.weight", "blocks.1.feed.2.bias", "positions"} <= names
    assert "head.weight.exp_avg_sq" in names
    modules = dict(peak(view).modules.select("module", "allocated_bytes").iter_rows())
    assert modules["blocks.0.feed.0"] > 0


def test_the_leak_and_the_fat_tensor_are_named(view):
    found = growth(view)
    leaks = found.lines.filter("is_leak")
    assert leaks["line"].str.contains("train.py").all()
    assert leaks["line"].str.ends_with(" remember").all()
    assert leaks["per_step_bytes"].to_list() == [30_000 * 4]
    first = peak(view).allocations.row(0, named=True)
    assert first["line"].endswith(" enlarge")
    assert first["allocated_bytes"] == 12_000_000


def test_without_a_census_the_stacks_still_tell_something(trained):
    view = open_memory(str(trained[0] / "plain")).view
    assert view.census is None
    kinds = set(peak(view).categories["category"])
    assert "activation" in kinds
    assert growth(view).lines.filter("is_leak")["line"].str.ends_with(" remember").all()
    assert view.replay.mismatches == 0


@pytest.mark.parametrize("has_annotations", [True, False])
@pytest.mark.parametrize("has_free_stacks", [True, False])
def test_as_a_gpu_would_record_it_little_is_unknown(view, has_annotations, has_free_stacks):
    """Without the census, which is the truth here."""
    snapshot, truth = cuda_like(
        view, has_annotations=has_annotations, has_free_stacks=has_free_stacks
    )
    found = MemoryView(load_snapshot(io.BytesIO(pickle.dumps(snapshot))))
    held = held_at(found.allocations, 0, found.peak(0).event).select(
        "address", "requested_bytes", pl.col("category").cast(pl.String)
    )
    total = int(held["requested_bytes"].sum())
    right = dict.fromkeys((True, False), 0)
    for address, size, category in held.iter_rows():
        right[truth[address] == category] += size
    assert int(held.filter(pl.col("category") == "unknown")["requested_bytes"].sum()) < 0.15 * total
    assert right[True] > 0.85 * total


def test_the_verb_shows_the_run(trained):
    done = subprocess.run(
        [sys.executable, "-m", "stepscope", "memory", str(trained[0] / "census"), "--format",
         "json"],
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    document = json.loads(done.stdout)
    assert document["replay_mismatches"] == 0
    parts = {row["category"]: row["allocated_bytes"] for row in document["categories"]}
    assert parts["parameter"] == trained[1]["parameter"]
