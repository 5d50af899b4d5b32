"""The memory of a transformer's training, as a snapshot: what pictures of the memory view show."""

from __future__ import annotations

import pickle
from typing import Any

from tests.support.allocator import MIB, Allocator
from tests.support.snapshots import Frames

LAYERS = 8
STEPS = 4
MAIN = "train.py:41:main"
CALL = "torch/nn/modules/module.py:1780:_call_impl"
BACKWARD = ("??:0:torch::autograd::Engine::evaluate_function",)
WEIGHTS = (("attention.qkv", 24), ("attention.out", 8), ("mlp.up", 32), ("mlp.down", 32))
"""Of each layer: name, and size in MiB."""
KEPT = (("attention.py:64:forward", 40), ("attention.py:71:forward", 24), ("mlp.py:22:forward", 64))
"""What each layer keeps for the backward pass: line, and size in MiB."""


def transformer_memory() -> bytes:
    """A snapshot of a few steps, as torch writes it."""
    memory, stack = Allocator(), Frames()
    weights = _weights(memory, stack)
    moments: list[int] = []
    for step in range(STEPS):
        memory.range(f"ProfilerStep#{step}", True)
        _step(memory, stack, weights, moments)
        memory.range(f"ProfilerStep#{step}", False)
    return pickle.dumps(memory.snapshot())


def _weights(memory: Allocator, stack: Frames) -> list[tuple[int, int]]:
    found = []
    for layer in range(LAYERS):
        for name, mebibytes in WEIGHTS:
            frames = stack("torch/nn/modules/linear.py:106:__init__", "model.py:30:build", MAIN)
            address = memory.malloc(mebibytes * MIB, frames=frames)
            memory.annotate(address, f"stepscope:parameter:layers.{layer}.{name}.weight")
            found.append((address, mebibytes))
    return found


def _step(
    memory: Allocator, stack: Frames, weights: list[tuple[int, int]], moments: list[int]
) -> None:
    batch = memory.malloc(
        48 * MIB, frames=stack("torch/utils/data/_utils/collate.py:398:default_collate", MAIN)
    )
    kept: list[list[int]] = []
    for layer in range(LAYERS):
        mine = []
        for line, mebibytes in KEPT:
            frames = stack(line, CALL, f"model.py:{52 + layer % 3}:forward", MAIN)
            mine.append(memory.malloc(mebibytes * MIB, frames=frames))
            memory.free(memory.malloc(28 * MIB, frames=frames), frames=frames)
        kept.append(mine)
    loss: Any = stack("torch/nn/functional.py:3494:cross_entropy", CALL, "loss.py:12:forward", MAIN)
    logits = memory.malloc(420 * MIB, frames=loss)
    gradients = []
    for layer, mine in reversed(list(enumerate(kept))):
        scratch = memory.malloc(56 * MIB, frames=stack(*BACKWARD))
        for _, mebibytes in weights[layer * len(WEIGHTS) : (layer + 1) * len(WEIGHTS)]:
            gradients.append(
                memory.malloc(mebibytes * MIB, frames=stack("??:0:AccumulateGrad", *BACKWARD))
            )
        for address in mine:
            memory.free(address, frames=stack(*BACKWARD))
        memory.free(scratch, frames=stack(*BACKWARD))
        if layer == LAYERS - 1:
            memory.free(logits, frames=stack(*BACKWARD))
    memory.free(batch)
    if not moments:
        frames = stack(
            "torch/optim/adamw.py:180:_init_group", "torch/optim/adamw.py:230:step", MAIN
        )
        for _, mebibytes in weights:
            moments += [memory.malloc(mebibytes * MIB, frames=frames) for _ in range(2)]
    for address in gradients:
        memory.free(address, frames=stack("torch/optim/optimizer.py:985:zero_grad", MAIN))
