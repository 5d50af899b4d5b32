"""Every allocation has one category, from the best source there is."""

from __future__ import annotations

import json
import pickle

import polars as pl
import pytest
from tests.support.allocator import KIB, MIB, Allocator, OutOfMemory
from tests.support.snapshot_tables import loaded
from tests.support.snapshots import PROGRAMS, SCHEMAS, Frames, plain_training

from stepscope.memory.categories.categorise import CATEGORIES, categorise
from stepscope.memory.categories.census import parse_census
from stepscope.memory.replay.replay import replay


def replayed(snapshot):
    return replay(loaded(pickle.dumps(snapshot)))


def rows_of(found, replay_):
    return list(
        replay_.allocations.select("requested_bytes", "start_event")
        .hstack(found.table.select("category", "confidence", "source", "name"))
        .iter_rows()
    )


@pytest.mark.sampled(16)
@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_categories_add_up_to_what_was_allocated(program, schema):
    found = replayed(SCHEMAS[schema](PROGRAMS[program]()))
    categories = categorise(found)
    assert categories.table.schema == CATEGORIES
    assert categories.table["allocation"].equals(found.allocations["allocation"])
    assert categories.table["category"].null_count() == 0
    for device in found.curve["device"].unique():
        mine = found.curve.filter(pl.col("device") == device)
        for event in mine["event"].gather_every(7).to_list():
            live = found.allocations.join(categories.table, on="allocation").filter(
                (pl.col("device") == device)
                & (pl.col("start_event").is_null() | (pl.col("start_event") <= event))
                & (pl.col("free_event") > event).fill_null(pl.col("end_event").is_null())
            )
            total = mine.filter(pl.col("event") == event)["allocated_bytes"].item()
            assert live["size_bytes"].sum() == total


def test_a_training_by_its_stacks_and_steps():
    found = replayed(plain_training())
    table = found.allocations.drop("category").hstack(
        categorise(found).table.select("category", "confidence", "step")
    )
    lines = found.snapshot.stacks["frames"].to_list()
    names = found.snapshot.frames["name"].to_list()
    innermost = [
        None if stack is None else names[lines[stack][0]] for stack in table["stack"].to_list()
    ]
    table = table.with_columns(function=pl.Series(innermost))
    by_function = {
        name: set(rows["category"].to_list())
        for (name,), rows in table.partition_by("function", as_dict=True).items()
    }
    assert by_function["collate"] == {"input"}
    assert by_function["step"] == {"optimizer_state"}
    assert by_function["forward"] == {"activation", "temporary"}
    forward = table.filter(pl.col("function") == "forward")
    kept = (forward["free_event"] - forward["start_event"]) > 1
    assert (forward["category"].cast(pl.String) == "activation").equals(kept)
    gradients = table.filter(pl.col("function").is_null())
    assert set(gradients["category"]) == {"gradient"}
    assert set(gradients["confidence"]) == {"likely"}
    batches = table.filter(pl.col("function") == "collate")
    assert batches["step"].to_list() == [0, 1, 2]


@pytest.mark.parametrize("where", [(), ("torch/autograd/graph.py:8:_engine_run_backward",)])
def test_what_the_optimizer_used_is_a_gradient_even_if_the_step_frees_it(where):
    """`zero_grad` at the end of the step, and a recorder that notes no stacks of frees."""
    allocator, stack = Allocator(), Frames()
    weights = [allocator.malloc(size * MIB) for size in (3, 3, 12)]
    allocator.events.clear()
    for step in range(3):
        allocator.range(f"ProfilerStep#{step}", True)
        batch = allocator.malloc(MIB, frames=stack("train.py:5:main"))
        gradients = []
        for size in (3, 3, 12):
            between = allocator.malloc(2 * size * MIB, frames=stack(*where))
            gradients.append(allocator.malloc(size * MIB, frames=stack(*where)))
            allocator.free(between)
        allocator.range("Optimizer.step#SGD.step", True)
        allocator.range("Optimizer.step#SGD.step", False)
        for gradient in gradients:
            allocator.free(gradient)
        allocator.free(batch)
        allocator.range(f"ProfilerStep#{step}", False)
    found = replayed(allocator.snapshot())
    sums = dict(
        found.allocations.drop("category")
        .hstack(categorise(found).table.select("category"))
        .group_by(pl.col("category").cast(pl.String))
        .agg(pl.col("requested_bytes").sum() // MIB)
        .iter_rows()
    )
    assert len(weights) == 3
    assert sums == {"parameter": 18, "gradient": 3 * 18, "temporary": 3 * (36 + 1)}


FORWARD = "site-packages/torch/nn/modules/module.py:1:_call_impl"
MAKERS = {
    "a": "/x/torch/optim/adamw.py:1:_init_group",
    "b": "/x/torch/nn/modules/linear.py:1:__init__",
    "c": "/x/torch/distributed/distributed_c10d.py:1:all_reduce",
    "d": "??:0:torch::autograd::AccumulateGrad::apply",
    "e": "??:0:at::cuda::getNewWorkspace()",
    "f": "/x/torch/nn/parallel/comm.py:66:broadcast_coalesced",
    "g": "/x/torch/nn/parallel/scatter_gather.py:66:scatter",
    "h": "C:\\venv\\torch\\nn\\modules\\module.py:1357:convert",
    "i": "/x/torch/nn/utils/clip_grad.py:60:_clip_grads_with_norm_",
}


@pytest.mark.parametrize(
    ("maker", "category"),
    [
        ("a", "optimizer_state"),
        ("b", "parameter"),
        ("c", "communication"),
        ("d", "gradient"),
        ("e", "workspace"),
        ("f", "parameter"),
        ("g", "input"),
        ("h", "parameter"),
        ("i", "temporary"),
    ],
)
def test_stacks_of_torch(maker, category):
    allocator, stack = Allocator(), Frames()
    path = MAKERS[maker]
    file, line, name = path.rsplit(":", 2) if path[0] != "?" else path.split(":", 2)
    frame = {"filename": file, "line": int(line), "name": name}
    allocator.malloc(1000, frames=[frame, *stack(FORWARD, "train.py:1:main")])
    found = replayed(allocator.snapshot())
    assert rows_of(categorise(found), found) == [(1000, 1, category, "likely", "stack", None)]


def test_what_the_forward_pass_frees_again_is_temporary():
    allocator, stack = Allocator(), Frames()
    kept = allocator.malloc(1000, frames=stack(FORWARD))
    gone = allocator.malloc(2000, frames=stack(FORWARD))
    allocator.free(gone, frames=stack(FORWARD))
    allocator.free(kept, frames=stack("??:0:torch::autograd::Engine::run"))
    found = replayed(allocator.snapshot())
    kinds = [row[2] for row in rows_of(categorise(found), found)]
    assert kinds == ["activation", "temporary"]


def test_what_the_backward_pass_or_the_optimizer_keep_is_no_temporary():
    allocator, stack = Allocator(), Frames()
    backward = stack("??:0:torch::autograd::Engine::run")
    optimizer = stack("/x/torch/optim/sgd.py:1:step")
    for frames in (backward, optimizer):
        allocator.malloc(1000, frames=frames)
        allocator.free(allocator.malloc(2000, frames=frames), frames=frames)
    found = replayed(allocator.snapshot())
    kinds = [row[2] for row in rows_of(categorise(found), found)]
    assert kinds == ["gradient", "temporary", "optimizer_state", "temporary"]


@pytest.mark.parametrize("fails", [False, True])
def test_without_a_backward_pass_nothing_is_an_activation(fails):
    """Unless a request failed, before which the backward pass may not have been reached."""
    allocator, stack = Allocator(total=40 * MIB), Frames()
    allocator.malloc(20 * MIB, frames=stack("model.py:4:forward", FORWARD))
    if fails:
        with pytest.raises(OutOfMemory):
            allocator.malloc(30 * MIB, frames=stack("model.py:5:forward", FORWARD))
    (kind,) = categorise(replayed(allocator.snapshot())).table["category"]
    assert kind == ("activation" if fails else "temporary")


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_blocks_from_before_that_are_as_large_as_the_gradients_are_parameters(copies):
    """And for each parameter as many more as the optimizer keeps of it."""
    allocator, stack = Allocator(), Frames()
    sizes = [3 * MIB, 5 * MIB, 5 * MIB, 700 * KIB]
    for _ in range(copies):
        for size in sizes:
            allocator.malloc(size)
    other = 9 * MIB + 512
    allocator.malloc(other)
    allocator.events.clear()
    for _ in range(3):
        gradients = [
            allocator.malloc(size, frames=stack("??:0:torch::autograd::AccumulateGrad::apply"))
            for size in sizes
        ]
        for gradient in gradients:
            allocator.free(gradient, frames=stack("/x/torch/optim/optimizer.py:9:zero_grad"))
    found = replayed(allocator.snapshot())
    before = found.allocations.hstack(
        categorise(found).table.select("confidence", "source", kind="category")
    )
    before = before.filter(pl.col("start_event").is_null())
    of = before.group_by(pl.col("kind").cast(pl.String)).agg(pl.col("requested_bytes").sort())
    kinds = dict(of.iter_rows())
    assert kinds["parameter"] == sorted(sizes)
    assert kinds["unknown"] == [other]
    assert kinds.get("optimizer_state", []) == sorted(sizes * (copies - 1))
    guessed = before.filter(pl.col("kind").cast(pl.String) != "unknown")
    assert set(guessed["confidence"]) == {"guessed"}
    assert set(guessed["source"]) == {"size"}


def test_what_a_step_makes_and_frees_again_is_temporary():
    allocator, stack = Allocator(), Frames()
    for step in range(3):
        allocator.range(f"ProfilerStep#{step}", True)
        allocator.free(allocator.malloc(MIB, frames=stack("train.py:30:main")))
        allocator.range(f"ProfilerStep#{step}", False)
    table = categorise(replayed(allocator.snapshot())).table
    assert set(table["category"]) == {"temporary"}
    assert set(table["confidence"]) == {"guessed"}


def test_lives_tell_where_nothing_else_does():
    allocator = Allocator()
    allocator.range("ProfilerStep#4", True)
    allocator.range("forward", True)
    saved = allocator.malloc(1000)
    allocator.free(allocator.malloc(2000))
    allocator.range("forward", False)
    allocator.range("backward", True)
    gradient = allocator.malloc(3000)
    allocator.free(saved)
    allocator.range("backward", False)
    allocator.range("Optimizer.step#SGD.step", True)
    allocator.malloc(4000)
    allocator.free(gradient)
    allocator.range("Optimizer.step#SGD.step", False)
    allocator.malloc(5000)
    allocator.range("ProfilerStep#4", False)
    found = replayed(allocator.snapshot())
    categories = categorise(found)
    assert [row[2:4] for row in rows_of(categories, found)] == [
        ("activation", "guessed"),
        ("temporary", "guessed"),
        ("gradient", "guessed"),
        ("optimizer_state", "guessed"),
        ("unknown", "none"),
    ]
    assert categories.table["step"].to_list() == [4] * 5
    assert categories.table["phase"].to_list() == [
        "forward", "forward", "backward", "optimizer", None,
    ]  # fmt: skip


def test_a_census_comes_before_annotations_and_these_before_stacks():
    allocator, stack = Allocator(), Frames()
    frames = stack(MAKERS["c"])
    blocks = [allocator.malloc(1000 * k, frames=frames) for k in (1, 2, 3)]
    allocator.annotate(blocks[0], "stepscope:gradient:not this")
    allocator.annotate(blocks[1], "stepscope:buffer:norm.running_mean")
    allocator.annotate(blocks[2], "stepscope:treasure")
    seen = {
        "kind": "parameter", "device": 0, "time_ns": allocator.time_us * 1000,
        "addresses": blocks[:1], "bytes": [1000], "names": [0],
    }  # fmt: skip
    lines = [{"census": 1}, {"names": ["head.weight"]}, seen]
    census = parse_census([json.dumps(line).encode() for line in lines], "a file")
    found = replayed(allocator.snapshot())
    categories = categorise(found, census)
    assert [row[2:] for row in rows_of(categories, found)] == [
        ("parameter", "certain", "census", "head.weight"),
        ("buffer", "certain", "annotation", "norm.running_mean"),
        ("communication", "likely", "stack", None),
    ]
    assert categories.census.unmatched == 0


def test_an_empty_device_holds_nothing():
    found = replayed({"segments": [], "device_traces": [[]]})
    categories = categorise(found)
    assert categories.table.is_empty()


def test_what_a_training_holds_from_before_is_not_taken_for_weights_without_evidence():
    allocator, stack = Allocator(), Frames()
    allocator.malloc(30 * MIB)
    allocator.events.clear()
    for _ in range(4):
        made = allocator.malloc(3 * MIB, frames=stack("model.py:21:forward"))
        allocator.free(allocator.malloc(2 * MIB, frames=stack("a/torch/optim/sgd.py:3:step")))
        allocator.free(made)
    found = replayed(allocator.snapshot())
    assert (30 * MIB, None, "unknown", "none", "none", None) in rows_of(categorise(found), found)


@pytest.mark.parametrize(
    ("frames", "size", "category", "confidence"),
    [
        (("??:0:at::cuda::getCurrentCUDABlasHandle()", "u/net.py:9:forward"), 8519680,
         "workspace", "likely"),
        (("??:0:at::cuda::getCurrentCUDABlasHandle()", "u/net.py:9:forward"), 33554432,
         "workspace", "likely"),
        (("??:0:cublasLt::getWorkspace()", "u/net.py:9:forward"), 12345, "workspace", "likely"),
        (("u/net.py:9:forward",), 8519680, "workspace", "guessed"),  # Python's frames alone
        (("torch/nn/modules/linear.py:1:__init__", "u/net.py:9:forward"), 8519680,
         "parameter", "likely"),
    ],
)  # fmt: skip
def test_what_libraries_keep_is_a_workspace(frames, size, category, confidence):
    allocator, stack = Allocator(), Frames()
    allocator.malloc(size, frames=stack(*frames))
    # The same size, but freed.
    allocator.free(allocator.malloc(8519680, frames=stack("u/net.py:9:forward")))
    allocator.malloc(512)  # as a backward pass asks for it
    first, second, *_ = rows_of(categorise(found := replayed(allocator.snapshot())), found)
    assert first[2:4] == (category, confidence)
    assert second[2] != "workspace"


@pytest.mark.parametrize(
    ("steps", "outputs", "is_workspace"),
    [
        (3, (1000, 1000, 1000), True),
        (1, (1000,), False),  # nothing shows that the line asks for it only once
        (3, (33554432, 1000, 1000), False),  # its output is as large
        (3, (None, 1000, 1000), False),  # a cache: nothing was asked for beside it
    ],
)
def test_what_hopper_keeps_for_products_is_a_workspace(steps, outputs, is_workspace):
    allocator, stack = Allocator(), Frames()
    for step in range(steps):
        frames = stack("torch/nn/modules/linear.py:134:forward", "u/net.py:9:forward")
        made = [allocator.malloc(outputs[step], frames=frames)] if outputs[step] else []
        if step == 0:
            allocator.malloc(33554432, frames=frames)
        for address in made:
            allocator.free(address, frames=stack(FORWARD))
    kinds = rows_of(categorise(found := replayed(allocator.snapshot())), found)
    large = [row[2] for row in kinds if row[0] == 33554432]
    assert ("workspace" in large) == is_workspace
