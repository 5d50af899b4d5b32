"""A program that only computes: weights, static and growing caches, and failures within it."""

from __future__ import annotations

import pickle

import polars as pl
import pytest
from tests.support.allocator import MIB, Allocator, OutOfMemory
from tests.support.snapshot_tables import loaded
from tests.support.snapshots import Frames

from stepscope.memory.categories.categorise import categorise
from stepscope.memory.categories.census import parse_census
from stepscope.memory.questions.bounded import Run
from stepscope.memory.questions.fit import will_it_fit
from stepscope.memory.questions.oom import out_of_memory
from stepscope.memory.replay.replay import replay
from stepscope.memory.view import MemoryView

LAYERS, TOKENS = 8, 12
CALL = "torch/nn/modules/module.py:1780:_call_impl"


def replayed(snapshot):
    return replay(loaded(pickle.dumps(snapshot)))


def sizes_of(snapshot, kind):
    found = replayed(snapshot)
    rows = found.allocations.select("requested_bytes").hstack(categorise(found).table)
    return sorted(
        size // MIB for size in rows.filter(pl.col("category") == kind)["requested_bytes"]
    )


def forget(allocator):
    """What is held comes from before the recording."""
    allocator.events.clear()
    for segment in allocator.segments:
        for block in segment.blocks:
            block.frames = []


def generation(is_recorded, is_cached=True):
    """A model that generates: its weights, and for each layer keys and values that grow."""
    allocator, stack = Allocator(), Frames()
    weights = stack("serve.py:5:load_weights")
    for _ in range(LAYERS):
        for size in (12, 4, 16, 16):
            allocator.malloc(size * MIB, frames=weights)
    if not is_recorded:
        forget(allocator)
    kept = {}
    for token in range(TOKENS):
        hidden = []
        for layer in range(LAYERS):
            between = allocator.malloc(3 * MIB, frames=stack("model.py:21:forward"))
            if is_cached:
                longer = allocator.malloc((2 + token) * MIB, frames=stack("model.py:30:forward"))
                if layer in kept:
                    allocator.free(kept[layer])
                kept[layer] = longer
            hidden.append(allocator.malloc(MIB, frames=stack("model.py:33:forward")))
            allocator.free(between)
        for one in hidden:
            allocator.free(one)
    return allocator.snapshot()


@pytest.mark.parametrize("is_recorded", [True, False])
def test_an_inference_keeps_its_weights_and_a_cache(is_recorded):
    """Results of all layers that a call holds together, and gives back with it, are no cache."""
    found = replayed(generation(is_recorded))
    categories = categorise(found)
    kinds = found.allocations.group_by(categories.table["category"].cast(pl.String)).agg(
        (pl.col("requested_bytes") // MIB).unique()
    )
    assert {kind: set(sizes) for kind, sizes in kinds.iter_rows()} == {
        "parameter": {4, 12, 16},
        "cache": set(range(2, 2 + TOKENS)),
        "temporary": {1, 3},
    }
    by_life = categories.table.filter(pl.col("source") == "lifetime")
    assert set(by_life["confidence"]) == {"guessed"}
    view = MemoryView(found.snapshot)
    assert any("are taken for weights" in note for note in view.notes(0))
    # They may be a cache that was allocated with the weights, so nothing is said to fit.
    predicted = will_it_fit([Run(4, view)], [8], capacity_bytes=2**40)
    assert predicted.targets["fits"][-1] is None
    assert predicted.verdict.startswith("cannot say")


def test_without_a_cache_nothing_is_one():
    found = replayed(generation(is_recorded=True, is_cached=False))
    assert "cache" not in set(categorise(found).table["category"])


def test_what_an_encoder_keeps_for_its_decoder_is_no_cache():
    """One function makes it all, as far as a recorder without line numbers tells."""
    allocator, stack = Allocator(), Frames()
    forward = stack("unet.py:10:forward")
    for _ in range(6):
        kept = []
        for _ in range(6):
            between = allocator.malloc(3 * MIB, frames=forward)
            kept.append(allocator.malloc(2 * MIB, frames=forward))
            allocator.free(between)
        last = allocator.malloc(MIB, frames=forward)
        while kept:
            between = allocator.malloc(3 * MIB, frames=forward)
            result = allocator.malloc(MIB, frames=forward)
            for one in (between, last, kept.pop()):
                allocator.free(one)
            last = result
        allocator.free(last)
    found = replayed(allocator.snapshot())
    assert set(categorise(found).table["category"]) == {"temporary"}


# -- static caches

LLAMA = (12, 4, 4, 12, 40, 40, 40)
"""The weights of a layer in MiB: q, k, v, o, gate, up, down."""
MULTI_HEAD = (16, 16, 16, 16, 43, 43, 43)
GPT = (12, 4, 16, 16)
EXPERTS = (16, 4, *([28] * 6 * 3))
"""Attention, and six experts of three matrices each."""


class Server:
    """A model that serves requests: it computes, and keeps nothing for a backward pass."""

    def __init__(self, layer=LLAMA, layers=LAYERS, total=None):
        self.memory = Allocator() if total is None else Allocator(total=total)
        self.stack = Frames()
        self.layers = layers
        load = self.stack("serve.py:5:load")
        self.memory.malloc(130 * MIB, frames=load)  # the embedding
        for _ in range(layers):
            for size in layer:
                self.memory.malloc(size * MIB, frames=load)
        self.memory.malloc(130 * MIB, frames=load)  # the head

    def cache(self, size, count, *frames):
        for _ in range(count):
            self.memory.malloc(size * MIB, frames=self.stack(*frames or ("serve.py:9:prepare",)))

    def serve(self, calls, lazily=0, batch=1):
        """Calls of the model; the first makes a cache in each layer, if it is made lazily."""
        stack, memory = self.stack, self.memory
        for call in range(calls):
            hidden = memory.malloc(2 * batch * MIB, frames=stack("model.py:50:forward", CALL))
            for _ in range(self.layers):
                if lazily and not call:
                    for line in ("model.py:11:forward", "model.py:12:forward"):
                        memory.malloc(lazily * MIB, frames=stack(line, CALL))
                wide = memory.malloc(6 * batch * MIB, frames=stack("model.py:21:forward", CALL))
                narrow = memory.malloc(2 * batch * MIB, frames=stack("model.py:33:forward", CALL))
                memory.free(wide)
                memory.free(hidden)
                hidden = narrow
            memory.free(memory.malloc(9 * batch * MIB, frames=stack("model.py:60:forward", CALL)))
            memory.free(hidden)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("layer", [LLAMA, MULTI_HEAD, GPT, EXPERTS])
@pytest.mark.parametrize("per_layer", [1, 2])
@pytest.mark.parametrize("size", [24, 16])
@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_static_cache_from_before_is_told_from_weights(layer, per_layer, size, is_recorded):
    """Also where its blocks are as large as some of the weights, but for one in a gap of these."""
    server = Server(layer)
    server.cache(size, per_layer * LAYERS)
    if not is_recorded:
        forget(server.memory)
    server.serve(6)
    snapshot = server.memory.snapshot()
    astray = int(layer is EXPERTS and size == 16 and not is_recorded)
    assert sizes_of(snapshot, "cache") == [size] * (per_layer * LAYERS - astray)
    weights = sorted((*layer * LAYERS, 130, 130, *[size] * astray))
    assert sizes_of(snapshot, "parameter") == weights
    notes = MemoryView(replayed(snapshot).snapshot).notes(0)
    assert any("taken for a static cache (keys and values)" in note for note in notes)
    # It may be made for the batch, or fill the memory that there is.
    view = MemoryView(replayed(snapshot).snapshot)
    assert will_it_fit([Run(4, view)], [8], capacity_bytes=2**40).targets["fits"][-1] is None


@pytest.mark.parametrize("layer", [LLAMA, MULTI_HEAD, GPT, EXPERTS, (16,), (16, 16)])
def test_without_a_static_cache_nothing_is_taken_for_one(layer):
    server = Server(layer)
    forget(server.memory)
    server.serve(6)
    assert not sizes_of(server.memory.snapshot(), "cache")


@pytest.mark.sampled(14)
@pytest.mark.parametrize("layer", [LLAMA, MULTI_HEAD, GPT, EXPERTS])
@pytest.mark.parametrize("is_recorded", [True, False])
@pytest.mark.parametrize(
    "sizes",
    [
        [9, 2] * LAYERS,  # keys and values of two widths
        [9] * LAYERS + [2] * LAYERS,
        [5, 5, 5, 5, 5, 5, 29, 29] * (LAYERS // 4),  # a window in three of four layers
        [5, 5, 5, 29] * (LAYERS // 4),
        [700],  # all layers in one block
        [9, 2] * LAYERS + [33, 3],  # and buffers behind it
        [700, 3],
    ],
)
def test_a_static_cache_of_two_sizes_or_in_one_block(layer, is_recorded, sizes):
    server = Server(layer)
    for size in sizes:
        server.cache(size, 1)
    if not is_recorded:
        forget(server.memory)
    server.serve(6)
    cache = [size for size in sizes if size not in (33, 3)]
    if layer is EXPERTS and not is_recorded and len(set(cache)) > 1:
        return  # blocks lie in gaps among the weights, and no order tells them
    assert sizes_of(server.memory.snapshot(), "cache") == sorted(cache)


@pytest.mark.parametrize("layers", [3, 4, 8, 12])
@pytest.mark.parametrize("head", [[], [90], [200], [31, 17]])
def test_what_follows_the_layers_of_weights_is_no_cache(layers, head):
    server = Server(LLAMA, layers)
    for size in head:
        server.cache(size, 1)
    forget(server.memory)
    server.serve(6)
    found = sizes_of(server.memory.snapshot(), "cache")
    # A last block as large as a layer could be either.
    assert found in ([], [200])


def test_a_static_cache_that_the_first_call_makes_is_one():
    server = Server()
    forget(server.memory)
    server.serve(6, lazily=7)
    snapshot = server.memory.snapshot()
    assert sizes_of(snapshot, "cache") == [7] * 2 * LAYERS
    assert set(sizes_of(snapshot, "temporary")) == {2, 6, 9}


def test_results_that_pile_up_are_no_cache():
    server = Server()
    forget(server.memory)
    for _ in range(8):
        server.serve(1)
        server.memory.malloc(5 * MIB, frames=server.stack("model.py:70:forward", CALL))
    assert not sizes_of(server.memory.snapshot(), "cache")


def test_a_census_that_names_the_weights_tells_what_is_none():
    server = Server()
    lines = ['{"census": 1, "clock": "unix_ns"}']
    blocks = [block for segment in server.memory.segments for block in segment.blocks]
    held = [block.address for block in blocks if block.state != "inactive"]
    server.cache(30, 1)
    forget(server.memory)
    server.serve(4)
    lines += [
        f'{{"kind": "parameter", "device": 0, "time_ns": {10**18}, "addresses": {held}}}',
    ]
    found = replayed(server.memory.snapshot())
    categories = categorise(found, parse_census(map(str.encode, lines), "census"))
    table = found.allocations.select("requested_bytes").hstack(categories.table)
    (kind,) = table.filter(pl.col("requested_bytes") == 30 * MIB)["category"]
    assert kind == "unknown"  # one block says nothing, but it is no weight


# -- failures


def failed_serving(calls, batch):
    server = Server(total=130 * 2 * MIB + LAYERS * sum(LLAMA) * MIB + 362 * MIB)
    server.cache(16, 2 * LAYERS, "x/transformers/cache_utils.py:300:lazy_initialization")
    server.serve(calls)
    with pytest.raises(OutOfMemory):
        server.serve(1, batch=batch)
    return server.memory.snapshot()


@pytest.mark.parametrize("calls", [0, 1, 5])
def test_an_inference_that_runs_out_of_memory_keeps_nothing_for_a_backward_pass(calls):
    """With one layer served before it fails, the layers before say so."""
    snapshot = failed_serving(calls, batch=16 if calls else 15)
    view = MemoryView(replayed(snapshot).snapshot)
    found = out_of_memory(view)
    kinds = set(found.categories["category"].cast(pl.String))
    if calls:
        assert kinds == {"parameter", "cache", "temporary"}
        assert view.categories.is_inference
        advice = " ".join(found.remedies["remedy"])
        assert "checkpoint" not in advice
        assert "accumulate" not in advice
        assert "the cache" in advice


@pytest.mark.parametrize("validated", [0, 3])
def test_a_training_that_runs_out_of_memory_in_its_first_forward_pass_has_activations(validated):
    """Also after a validation without gradients, whose results were given back."""
    memory, stack = Allocator(total=300 * MIB), Frames()

    def forward(is_kept):
        kept = []
        for layer in range(LAYERS):
            for line in (21, 33):
                made = memory.malloc(20 * MIB, frames=stack(f"m.py:{line + layer}:forward", CALL))
                kept.append(made)
            if not is_kept:
                while len(kept) > 1:
                    memory.free(kept.pop(0))
        for one in kept:
            memory.free(one)

    for _ in range(validated):
        forward(is_kept=False)
    with pytest.raises(OutOfMemory):
        forward(is_kept=True)
    found = out_of_memory(MemoryView(replayed(memory.snapshot()).snapshot))
    kinds = dict(found.categories.select("category", "allocated_bytes").iter_rows())
    assert kinds["activation"] > 0
    assert "temporary" not in kinds
