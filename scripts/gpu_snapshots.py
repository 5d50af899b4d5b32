"""Memory snapshots of every kind, each from a small program on the GPU; parts of a GPU session.

    python scripts/gpu_snapshots.py NAME --out DIR --result FILE.json

Each takes some gigabytes for a moment, and leaves one pickle below a megabyte, compressed.
"""

from __future__ import annotations

import contextlib
import gzip
import shutil
from collections.abc import Callable
from typing import Any

import torch
from gpu_part import DEVICE, limit_gpu_memory, parse
from torch import nn
from torch.nn import functional

ENTRIES = 3000
MIB, GIB = 1 << 20, 1 << 30
Kept = list[Any]


def leak(kept: Kept) -> None:
    """Each step keeps its loss, and with it the graph of the step."""
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(6))).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    kept.extend([model, optimizer])
    for _ in range(12):
        optimizer.zero_grad()
        loss = model(torch.randn(2048, 1024, device=DEVICE)).square().mean()
        loss.backward(retain_graph=True)  # type: ignore[no-untyped-call, unused-ignore]
        optimizer.step()
        kept.append(loss)


def logits(kept: Kept) -> None:
    """A vocabulary of 128,000: scores and their gradients are most of the peak."""
    body = nn.Sequential(nn.Embedding(128_000, 512), nn.Linear(512, 512), nn.GELU()).to(DEVICE)
    head = nn.Linear(512, 128_000, bias=False, device=DEVICE)
    optimizer = torch.optim.AdamW([*body.parameters(), *head.parameters()])
    kept.extend([body, head, optimizer])
    for _ in range(3):
        tokens = torch.randint(0, 128_000, (2048,), device=DEVICE)
        scores = head(body(tokens))
        functional.cross_entropy(scores.float(), tokens).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        del scores


def transformer(kept: Kept) -> None:
    """A healthy training, for the categories."""
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    kept.extend([model, optimizer])
    for _ in range(4):
        batch = torch.randn(8, 256, 512, device=DEVICE)
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def _fails(size: int) -> None:
    """Ask for memory that cannot be had."""
    try:
        torch.empty(size, dtype=torch.uint8, device=DEVICE)
    except torch.OutOfMemoryError:
        return
    raise RuntimeError("the request was granted")


def oom_fragmented(kept: Kept) -> None:
    """2.6 GiB of 4 are free, in pieces between blocks that stay."""
    limit_gpu_memory(4 * GIB)
    large = [torch.empty(GIB, dtype=torch.uint8, device=DEVICE) for _ in range(3)]
    large.clear()
    pieces = [torch.empty(60 * MIB, dtype=torch.uint8, device=DEVICE) for _ in range(48)]
    kept.extend(pieces[::8])
    pieces.clear()
    _fails(3 * GIB // 2)


def oom_full(kept: Kept) -> None:
    """The limit is reached by blocks in use."""
    limit_gpu_memory(4 * GIB)
    kept.extend(torch.empty(512 * MIB, dtype=torch.uint8, device=DEVICE) for _ in range(7))
    _fails(GIB)


def oom_too_large(kept: Kept) -> None:
    """One request larger than the card."""
    kept.append(torch.empty(256 * MIB, dtype=torch.uint8, device=DEVICE))
    _fails(1 << 42)


def oom_training(kept: Kept) -> None:
    """Weights and optimizer state leave no room for the activations of a larger batch."""
    limit_gpu_memory(2 * GIB)
    model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(12))).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    kept.append(model)
    with contextlib.suppress(torch.OutOfMemoryError):
        for rows in (2048, 2048, 65536):
            model(torch.randn(rows, 2048, device=DEVICE)).relu().square().mean().backward()
            optimizer.step()
        raise RuntimeError("the training fitted")


def private_pool(kept: Kept) -> None:
    """A CUDA graph keeps its memory in a pool of its own."""
    left = torch.randn(4096, 4096, device=DEVICE)
    left @ left
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        product = (left @ left).relu() + 1
    graph.replay()
    kept.extend([graph, product, left])


def two_streams(_: Kept) -> None:
    """Blocks of one stream do not serve the other."""
    side = torch.cuda.Stream()
    for _step in range(3):
        torch.empty(512 * MIB, dtype=torch.uint8, device=DEVICE).zero_()
        with torch.cuda.stream(side):
            torch.empty(512 * MIB, dtype=torch.uint8, device=DEVICE).zero_()


def expandable(kept: Kept) -> None:
    """Expandable segments, with sizes that grow."""
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    for number in range(8):
        block = torch.empty((100 + 40 * number) * MIB, dtype=torch.uint8, device=DEVICE)
        small = [torch.empty(3 * MIB, dtype=torch.uint8, device=DEVICE) for _ in range(6)]
        kept.append(small[0])
        del block, small


KINDS: dict[str, Callable[[Kept], None]] = {
    "leak": leak,
    "logits": logits,
    "transformer": transformer,
    "oom-fragmented": oom_fragmented,
    "oom-full": oom_full,
    "oom-too-large": oom_too_large,
    "oom-training": oom_training,
    "private-pool": private_pool,
    "two-streams": two_streams,
    "expandable": expandable,
    "no-history": transformer,
}


def main() -> None:
    """Make one snapshot."""
    name, out, result = parse(__doc__, tuple(KINDS))
    torch.cuda.init()
    if name != "no-history":
        torch.cuda.memory._record_memory_history(max_entries=ENTRIES, stacks="python")
    kept: Kept = []
    problem = ""
    try:
        KINDS[name](kept)
    except Exception as error:  # noqa: BLE001 - a snapshot of what was reached is still of use
        problem = f"{type(error).__name__}: {error}"
    torch.cuda.synchronize()
    plain = out / f"{name}.pickle"
    torch.cuda.memory._dump_snapshot(str(plain))
    packed = out / f"{name}.pickle.gz"
    with plain.open("rb") as source, gzip.open(packed, "wb", compresslevel=6) as target:
        shutil.copyfileobj(source, target)
    plain.unlink()
    result.put(
        file=packed.name,
        bytes=packed.stat().st_size,
        problem=problem,
        allocated_bytes=torch.cuda.memory_allocated(),
        reserved_bytes=torch.cuda.memory_reserved(),
        peak_bytes=torch.cuda.max_memory_allocated(),
        ooms=torch.cuda.memory_stats().get("num_ooms"),
        retries=torch.cuda.memory_stats().get("num_alloc_retries"),
    )
    kept.clear()


if __name__ == "__main__":
    main()
