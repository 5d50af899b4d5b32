"""Planted bottlenecks as real trainings, each with the change that removes it.

One training per process, as `gpu_session.py` starts them:

    python scripts/gpu_trainings.py NAME --out DIR --result FILE.json

For the training as it is, and then with the fix: the step time without any recording (synchronised,
many steps), then a recorded run of a few steps in DIR. `TRAININGS` is the list. Sizes suit an H100,
steps of 2 to 60 ms; on a CPU they are tiny, and some cannot run.
"""

from __future__ import annotations

import gc
import hashlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from gpu_part import DEVICE, ON_GPU, Result, limit_gpu_memory, measured_step_ns, median, parse
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

HALF = torch.bfloat16 if ON_GPU else torch.float32


@dataclass(frozen=True)
class Job:
    """A training that was set up.

    Attributes:
        step: Trains on one batch.
        batches: Its input, read again from the start for each epoch; None: the step makes its own.
        samples: Samples per step, where the fix changes them.
    """

    step: Callable[[Any], object]
    batches: Iterable[Any] | None = None
    samples: int = 1


@dataclass(frozen=True)
class Training:
    """A planted bottleneck.

    Attributes:
        build: Sets the training up; True: with the fix.
        expected: Findings of which one must come first; none: a healthy training.
        fix: The change, in words.
        is_promised: Whether the fix is what the finding's saving assumes.
        forbidden: Findings that would be wrong with and without the fix.
        record: Options of the recording.
    """

    build: Callable[[bool], Job]
    expected: frozenset[str]
    fix: str
    is_promised: bool = True
    forbidden: frozenset[str] = frozenset()
    record: dict[str, Any] = field(default_factory=dict)


def pick(full: int, tiny: int) -> int:
    """A size on the GPU, or on a CPU."""
    return full if ON_GPU else tiny


def layers(width: int, count: int, dtype: torch.dtype) -> nn.Sequential:
    """Linear layers with an activation each."""
    parts = [part for _ in range(count) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*parts).to(DEVICE, dtype)


def trainer(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Tensor], Tensor]:
    """The usual step: forward, a loss, backward, optimizer."""

    def step(batch: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss: Tensor = model(batch).float().square().mean()
        loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
        optimizer.step()
        return loss

    return step


def plain_sgd(model: nn.Module) -> torch.optim.Optimizer:
    """An optimizer of few kernels."""
    return torch.optim.SGD(model.parameters(), lr=1e-6)


def captured(step: Callable[[], object]) -> Callable[[], None]:
    """The step as one CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def launch_bound(is_fixed: bool) -> Job:
    """Small layers: about 300 launches of kernels of a few microseconds."""
    model = layers(256, 40, torch.float32)
    batch = torch.randn(32, 256, device=DEVICE)
    step = trainer(model, plain_sgd(model))
    if not is_fixed:
        return Job(lambda _: step(batch))
    replay = captured(lambda: step(batch))
    return Job(lambda _: replay())


def pageable_copies(is_fixed: bool) -> Job:
    """64 MB of input from ordinary memory per step, before matrix products."""
    width = pick(4096, 64)
    rows = pick(64 << 20, 1 << 14) // (4 * width)
    model = layers(width, 4, HALF)
    inputs = [torch.randn(rows, width) for _ in range(3)]
    if is_fixed:
        inputs = [part.pin_memory() for part in inputs]
    step = trainer(model, plain_sgd(model))
    turn = itertools.cycle(inputs)
    return Job(lambda _: step(next(turn).to(DEVICE, non_blocking=is_fixed).to(HALF)))


class Checked(nn.Module):
    """Layers, and after each a look for infinities, which waits for the GPU."""

    def __init__(self, width: int, count: int, *, looks: bool) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(width, width) for _ in range(count))
        self.looks = looks

    def forward(self, hidden: Tensor) -> Tensor:
        """Apply the layers."""
        for part in self.parts:
            hidden = functional.relu(part(hidden))
            if self.looks and hidden.isinf().any().item():
                raise ValueError("a layer overflowed")
        return hidden


def synchronisation(is_fixed: bool) -> Job:
    """Four micro-batches of 8 layers per step, and .item() after each layer."""
    width = pick(4096, 32)
    model = Checked(width, pick(8, 2), looks=not is_fixed).to(DEVICE, HALF)
    optimizer = plain_sgd(model)
    batch = torch.randn(width // 2, width, device=DEVICE, dtype=HALF)

    def step(_: object) -> None:
        optimizer.zero_grad(set_to_none=True)
        for _ in range(4):
            model(batch).float().square().mean().backward()
        optimizer.step()

    return Job(step)


class Attention(nn.Module):
    """Self-attention by hand, or by the fused operator."""

    def __init__(self, width: int, heads: int, *, is_fused: bool) -> None:
        super().__init__()
        self.heads, self.is_fused = heads, is_fused
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        """Attend to all positions."""
        batch, length, width = hidden.shape
        parts = self.qkv(hidden).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        if self.is_fused:
            mixed = functional.scaled_dot_product_attention(query, key, value)
        else:
            scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
            mixed = functional.softmax(scores, dim=-1) @ value
        result: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return hidden + result


def unfused_attention(is_fixed: bool) -> Job:
    """softmax(QKᵀ)V over 2,048 positions, written out."""
    width, length = pick(1024, 32), pick(2048, 32)
    model = nn.Sequential(*(Attention(width, pick(16, 2), is_fused=is_fixed) for _ in range(2)))
    model = model.to(DEVICE, HALF)
    batch = torch.randn(pick(4, 2), length, width, device=DEVICE, dtype=HALF)
    step = trainer(model, plain_sgd(model))
    return Job(lambda _: step(batch))


def full_precision(is_fixed: bool) -> Job:
    """FP32 matrix products with TF32 off."""
    torch.set_float32_matmul_precision("high" if is_fixed else "highest")
    width = pick(4096, 32)
    model = layers(width, 2, torch.float32)
    batch = torch.randn(width, width, device=DEVICE)
    step = trainer(model, plain_sgd(model))
    return Job(lambda _: step(batch))


def small_batch(is_fixed: bool) -> Job:
    """A transformer on one short sequence; the fix is 32 of them."""
    samples = 32 if is_fixed else 1
    width = pick(512, 32)
    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).to(DEVICE, HALF)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=ON_GPU)
    batch = torch.randn(samples, pick(128, 8), width, device=DEVICE, dtype=HALF)
    step = trainer(model, optimizer)
    return Job(lambda _: step(batch), samples=samples)


class Samples(Dataset[Tensor]):
    """Samples that take time: of a storage that is waited for, or of the CPU."""

    def __init__(self, seconds: float, hashed_bytes: int, count: int = 1 << 20) -> None:
        self._seconds = seconds
        self._bytes = bytes(hashed_bytes)
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Tensor:
        """One row of numbers."""
        if self._seconds:
            time.sleep(self._seconds)
        if self._bytes:
            hashlib.sha256(self._bytes).digest()
        return torch.full((pick(1024, 32),), float(index % 7))


def _starved(samples: Samples, is_fixed: bool) -> Job:
    loader = DataLoader(
        samples, batch_size=16, num_workers=pick(8, 2) if is_fixed else 1, pin_memory=ON_GPU
    )
    return _fed(loader)


def _fed(loader: DataLoader[Tensor]) -> Job:
    """Eight layers that a loader feeds."""
    width = pick(1024, 32)
    model = layers(width, pick(8, 2), HALF)
    step = trainer(model, plain_sgd(model))
    return Job(lambda batch: step(batch.to(DEVICE, HALF, non_blocking=True)), loader)


def starved_loader(is_fixed: bool) -> Job:
    """One worker that waits a millisecond for each sample."""
    return _starved(Samples(0.001, 0), is_fixed)


def starved_loader_cpu(is_fixed: bool) -> Job:
    """One worker that computes half a millisecond or more for each sample."""
    return _starved(Samples(0.0, pick(1 << 20, 1 << 18)), is_fixed)


def full_queue(is_fixed: bool) -> Job:
    """1,500 kernels of about 30 µs: the host is ahead until the launch queue is full."""
    tensors = [torch.ones(pick(10 << 20, 64), device=DEVICE) for _ in range(4)]
    kernels = pick(1500, 30) // (2 if is_fixed else 1)

    def step(_: object) -> None:
        for number in range(kernels):
            tensors[number % 4].mul_(1.0001)

    return Job(step)


def allocator_retries(is_fixed: bool) -> Job:
    """900 MB on two streams in turn, where torch may take 1.5 GB: each frees the other's."""
    if ON_GPU:
        limit_gpu_memory(8 << 30 if is_fixed else 3 << 29)
    model = layers(pick(2048, 32), 4, HALF)
    batch = torch.randn(pick(2048, 32), pick(2048, 32), device=DEVICE, dtype=HALF)
    train = trainer(model, plain_sgd(model))
    side = torch.cuda.Stream()
    size = 900 << 20

    # The training comes first: later it would split the blocks, which then could not be freed.
    def step(_: object) -> None:
        train(batch)
        torch.empty(size, dtype=torch.uint8, device=DEVICE).zero_()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.empty(size, dtype=torch.uint8, device=DEVICE).zero_()
        torch.cuda.current_stream().wait_stream(side)

    return Job(step)


def cuda_graphs(is_fixed: bool) -> Job:
    """Forward and backward are graphs already; the optimizer is a loop over the parameters."""
    model = layers(256, 40, torch.float32)
    batch = torch.randn(32, 256, device=DEVICE)
    graphed: Any = torch.cuda.make_graphed_callables(model, (batch,))
    which: dict[str, Any] = {"fused": True} if is_fixed else {"foreach": False}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, **which)
    step = trainer(graphed, optimizer)
    return Job(lambda _: step(batch))


class GatedBlock(nn.Module):
    """RMSNorm and SwiGLU, written out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(width, width, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """One block with its residual."""
        scale = torch.rsqrt(hidden.float().square().mean(-1, keepdim=True) + 1e-6)
        normal = (hidden.float() * scale).to(hidden.dtype) * self.weight
        gate, value = self.up(normal).chunk(2, dim=-1)
        result: Tensor = self.down(gate * torch.sigmoid(gate) * value)
        return hidden + result


def compiled(is_fixed: bool) -> Job:
    """Elementwise chains in eager mode; the fix is torch.compile."""
    width = pick(1024, 32)
    model: nn.Module = nn.Sequential(*(GatedBlock(width) for _ in range(4))).to(DEVICE, HALF)
    batch = torch.randn(pick(16384, 32), width, device=DEVICE, dtype=HALF)
    forward: Any = torch.compile(model) if is_fixed else model
    optimizer = plain_sgd(model)
    step = trainer(forward, optimizer)
    return Job(lambda _: step(batch))


def out_of_memory(is_fixed: bool) -> Job:
    """A batch that does not fit in 4 GB; the error is caught, and the training goes on."""
    if ON_GPU:
        limit_gpu_memory(4 << 30)
    width = pick(2048, 32)
    model = layers(width, 8, HALF)
    step = trainer(model, plain_sgd(model))
    rows = itertools.chain([4096, 4096] if is_fixed else [4096, 1 << 20], itertools.repeat(4096))

    def guarded(_: object) -> None:
        try:
            step(torch.randn(next(rows), width, device=DEVICE, dtype=HALF))
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()

    return Job(guarded)


def input_in_the_step(is_fixed: bool) -> Job:
    """Samples are computed between the steps, on the training thread."""
    loader = DataLoader(
        Samples(0.0, pick(1 << 18, 1 << 16)),
        batch_size=16,
        num_workers=pick(8, 2) if is_fixed else 0,
        pin_memory=ON_GPU,
    )
    return _fed(loader)


def restarted_workers(is_fixed: bool) -> Job:
    """Epochs of 12 batches, and new workers for each."""
    loader = DataLoader(
        Samples(0.0002, 0, count=12 * 16),
        batch_size=16,
        num_workers=pick(4, 2),
        persistent_workers=is_fixed,
        pin_memory=ON_GPU,
    )
    return _fed(loader)


def collected_garbage(is_fixed: bool) -> Job:
    """`gc.collect()` after each step, with half a million objects to look at."""
    held = [[number] for number in range(pick(500_000, 20_000))]
    model = layers(pick(4096, 32), 4, HALF)
    batch = torch.randn(pick(4096, 32), pick(4096, 32), device=DEVICE, dtype=HALF)
    train = trainer(model, plain_sgd(model))

    def step(_: object) -> None:
        train(batch)
        if not is_fixed:
            gc.collect()
        held[0][0] += 1

    return Job(step)


def python_in_the_step(is_fixed: bool) -> Job:
    """Words are counted in Python before each step: about 8 ms."""
    words = [f"word{number % 997}" for number in range(pick(60_000, 2_000))]
    model = layers(pick(4096, 32), 4, HALF)
    batch = torch.randn(pick(2048, 32), pick(4096, 32), device=DEVICE, dtype=HALF)
    train = trainer(model, plain_sgd(model))

    def count_words() -> int:
        counts: dict[str, int] = {}
        for word in words:
            counts[word] = counts.get(word, 0) + len(word)
        return len(counts)

    def step(_: object) -> None:
        if not is_fixed:
            count_words()
        train(batch)

    return Job(step)


def zeroed_gradients(is_fixed: bool) -> Job:
    """`zero_grad(set_to_none=False)` fills four gigabytes of gradients with zeros."""
    model = layers(pick(16_384, 32), pick(8, 2), HALF)
    optimizer = plain_sgd(model)
    batch = torch.randn(64, pick(16_384, 32), device=DEVICE, dtype=HALF)

    def step(_: object) -> None:
        optimizer.zero_grad(set_to_none=is_fixed)
        model(batch).float().square().mean().backward()
        optimizer.step()

    return Job(step)


def cross_entropy(is_fixed: bool) -> Job:
    """Logits of 50,304 words, widened to FP32, and their loss; the fix compiles the loss."""
    width, words, rows = pick(1024, 32), pick(50_304, 64), pick(8192, 32)
    head = nn.Linear(width, words, bias=False).to(DEVICE, HALF)
    optimizer = plain_sgd(head)
    hidden = torch.randn(rows, width, device=DEVICE, dtype=HALF)
    targets = torch.randint(words, (rows,), device=DEVICE)

    def loss_of(logits: Tensor, wanted: Tensor) -> Tensor:
        return functional.cross_entropy(logits.float(), wanted)

    loss: Any = torch.compile(loss_of) if is_fixed else loss_of

    def step(_: object) -> None:
        optimizer.zero_grad(set_to_none=True)
        loss(head(hidden), targets).backward()
        optimizer.step()

    return Job(step)


def image_layout(is_fixed: bool) -> Job:
    """BF16 convolutions of images stored channel by channel."""
    channels, size = pick(256, 4), pick(56, 8)
    parts = [
        part
        for _ in range(6)
        for part in (nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels))
    ]
    layout = torch.channels_last if is_fixed else torch.contiguous_format
    model = nn.Sequential(*parts).to(DEVICE, HALF).to(memory_format=layout)  # type: ignore[call-overload, unused-ignore]
    batch = torch.randn(pick(64, 2), channels, size, size, device=DEVICE, dtype=HALF)
    step = trainer(model, plain_sgd(model))
    images = batch.to(memory_format=layout)
    return Job(lambda _: step(images))


def odd_sizes(is_fixed: bool) -> Job:
    """BF16 products of matrices 4,095 wide, which no tensor core can read as they lie."""
    width = pick(4096 if is_fixed else 4095, 32)
    model = layers(width, 4, HALF)
    batch = torch.randn(width, width, device=DEVICE, dtype=HALF)
    step = trainer(model, plain_sgd(model))
    return Job(lambda _: step(batch))


def noise_on_the_cpu(is_fixed: bool) -> Job:
    """Noise for each step is drawn on the CPU and copied."""
    width = pick(4096, 32)
    model = layers(width, 4, HALF)
    train = trainer(model, plain_sgd(model))

    def step(_: object) -> None:
        if is_fixed:
            noise = torch.randn(2048, width, device=DEVICE)
        else:
            noise = torch.randn(2048, width).to(DEVICE)
        train(noise.to(HALF))

    return Job(step)


class Recomputed(nn.Module):
    """Blocks that run again in backward."""

    def __init__(self, blocks: nn.Module, *, runs_again: bool) -> None:
        super().__init__()
        self.blocks, self.runs_again = blocks, runs_again

    def forward(self, hidden: Tensor) -> Tensor:
        """Apply the blocks."""
        from torch.utils.checkpoint import checkpoint

        if not self.runs_again:
            result: Tensor = self.blocks(hidden)
            return result
        for block in self.blocks:  # type: ignore[attr-defined, unused-ignore]
            hidden = checkpoint(block, hidden, use_reentrant=False)
        return hidden


def recomputation(is_fixed: bool) -> Job:
    """Activation checkpointing of every block, with memory to spare."""
    width = pick(2048, 32)
    blocks = nn.Sequential(
        *(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(4)
        )
    )
    model = Recomputed(blocks, runs_again=not is_fixed).to(DEVICE, HALF)
    batch = torch.randn(pick(8192, 32), width, device=DEVICE, dtype=HALF, requires_grad=True)
    step = trainer(model, plain_sgd(model))
    return Job(lambda _: step(batch))


def small_copies(is_fixed: bool) -> Job:
    """200 small tensors are copied one by one; the fix copies them as one."""
    width = pick(2048, 32)
    parts = [torch.randn(width) for _ in range(200)]
    whole = torch.stack(parts).pin_memory() if ON_GPU else torch.stack(parts)
    model = layers(width, 6, HALF)
    train = trainer(model, plain_sgd(model))
    rest = torch.randn(pick(8192, 32), width, device=DEVICE, dtype=HALF)

    def step(_: object) -> None:
        if is_fixed:
            rows = whole.to(DEVICE, non_blocking=True)
        else:
            rows = torch.stack([part.to(DEVICE) for part in parts])
        train(torch.cat([rest, rows.to(HALF)]))

    return Job(step)


def healthy(is_fixed: bool) -> Job:
    """Large BF16 products, fed by workers that keep up; the fix changes nothing."""
    del is_fixed
    loader = DataLoader(Samples(0.0, 0), batch_size=16, num_workers=pick(4, 2), pin_memory=ON_GPU)
    width = pick(4096, 32)
    # With a narrow last layer, as its loss would be what a compiler could fuse.
    model = nn.Sequential(layers(width, 4, HALF), nn.Linear(width, 16).to(DEVICE, HALF))
    rest = torch.randn(pick(4080, 16), width, device=DEVICE, dtype=HALF)
    train = trainer(model, plain_sgd(model))

    def step(batch: Tensor) -> None:
        rows = batch.to(DEVICE, HALF, non_blocking=True)
        train(torch.cat([rest, rows.repeat(1, width // rows.shape[1])]))

    return Job(step, loader)


HOST = frozenset({"launch-bound", "cpu-bound-python", "synchronisation", "input-bound"})
TRAININGS: dict[str, Training] = {
    "launch-bound": Training(
        launch_bound,
        frozenset({"launch-bound"}),
        "one CUDA graph",
        forbidden=frozenset({"input-bound", "synchronisation"}),
    ),
    "pageable-copies": Training(
        pageable_copies,
        frozenset({"pageable-copies"}),
        "pinned memory, non_blocking=True",
        record={"with_stack": True},
    ),
    "synchronisation": Training(
        synchronisation,
        frozenset({"synchronisation"}),
        "no .item() per layer",
        record={"with_stack": True},
    ),
    "unfused-attention": Training(
        unfused_attention,
        frozenset({"unfused-attention"}),
        "scaled_dot_product_attention",
        forbidden=HOST,
    ),
    "fp32-matmuls": Training(
        full_precision, frozenset({"full-precision-matmuls"}), "TF32", forbidden=HOST
    ),
    "small-batch": Training(
        small_batch,
        frozenset({"launch-bound", "many-small-kernels", "cpu-bound-python"}),
        "32 times the batch (time per sample)",
        is_promised=False,
        forbidden=frozenset({"input-bound", "synchronisation"}),
    ),
    "starved-loader": Training(starved_loader, frozenset({"input-bound"}), "8 workers for 1"),
    "starved-loader-cpu": Training(
        starved_loader_cpu, frozenset({"input-bound"}), "8 workers for 1"
    ),
    "full-queue": Training(
        full_queue,
        frozenset({"unfused-elementwise", "many-small-kernels"}),
        "half the kernels",
        # A compiler leaves four of all of them.
        is_promised=False,
        forbidden=HOST,
    ),
    "allocator-retries": Training(
        allocator_retries, frozenset({"allocator-churn"}), "8 GB for 1.5 GB"
    ),
    "cuda-graphs": Training(
        cuda_graphs,
        frozenset({"unfused-optimizer", "launch-bound"}),
        "fused=True",
        forbidden=frozenset({"input-bound", "synchronisation"}),
    ),
    "compiled": Training(
        compiled, frozenset({"unfused-elementwise"}), "torch.compile", forbidden=HOST
    ),
    "out-of-memory": Training(
        out_of_memory,
        frozenset({"out-of-memory"}),
        "a batch that fits",
        record={"memory_history": True, "memory_max_entries": 5000},
    ),
    "input-in-the-step": Training(
        input_in_the_step, frozenset({"input-bound"}), "8 workers for none"
    ),
    "restarted-workers": Training(
        restarted_workers, frozenset({"slow-epoch-start"}), "persistent_workers=True"
    ),
    "collected-garbage": Training(
        collected_garbage,
        frozenset({"garbage-collector"}),
        "no gc.collect()",
        forbidden=frozenset({"input-bound", "launch-bound"}),
    ),
    "python-in-the-step": Training(
        python_in_the_step,
        frozenset({"cpu-bound-python"}),
        "no words counted",
        forbidden=frozenset({"input-bound", "synchronisation"}),
        record={"with_stack": True},
    ),
    "zeroed-gradients": Training(
        zeroed_gradients, frozenset({"zeroed-gradients"}), "set_to_none=True", forbidden=HOST
    ),
    "cross-entropy": Training(
        cross_entropy,
        frozenset({"fusible-pattern", "unfused-elementwise"}),
        "torch.compile of the loss",
        forbidden=HOST,
    ),
    "image-layout": Training(
        image_layout, frozenset({"layout-copies"}), "channels_last", forbidden=HOST
    ),
    "odd-sizes": Training(
        odd_sizes,
        frozenset({"tensor-cores-unused", "slow-matmuls"}),
        "4,096 for 4,095",
        forbidden=HOST,
    ),
    "noise-on-the-cpu": Training(
        noise_on_the_cpu,
        frozenset({"cpu-operators"}),
        "noise drawn on the GPU",
        forbidden=frozenset({"input-bound"}),
    ),
    "recomputation": Training(
        recomputation,
        frozenset({"heavy-recomputation"}),
        "no checkpointing",
        forbidden=HOST,
        record={"with_stack": True},
    ),
    "small-copies": Training(
        small_copies,
        frozenset({"pageable-copies", "synchronisation"}),
        "one pinned copy",
        forbidden=frozenset({"input-bound"}),
    ),
    "healthy": Training(healthy, frozenset(), "none", forbidden=HOST),
}


def _epochs(batches: Iterable[Any] | None, watch: Callable[[Any], Iterable[Any]]) -> Iterator[Any]:
    """Batches of one epoch after the other; None for each where there are none to read."""
    while True:
        yield from [None] if batches is None else watch(batches)


def _stepper(job: Job) -> Callable[[], object]:
    batches = _epochs(job.batches, lambda loader: loader)
    return lambda: job.step(next(batches))


def record(job: Job, out: Path, name: str, options: dict[str, Any]) -> str:
    """Record a few steps after some that are only timed; returns the run's directory."""
    import stepscope

    unrecorded, warmup, active = 20, 2, 4
    profiler = stepscope.Profiler(
        output_dir=out,
        run_name=name,
        wait=unrecorded,
        warmup=warmup,
        active=active,
        record_shapes=True,
        announce=False,
        **options,
    )
    steps = unrecorded + warmup + active + 2
    with profiler:
        if job.batches is None:
            for _ in range(steps):
                job.step(None)
                profiler.step()
        else:
            for batch in itertools.islice(_epochs(job.batches, profiler.watch), steps):
                job.step(batch)
    return str(profiler.run_path)


def main() -> None:
    """Measure and record one training, without and with its fix."""
    name, out, result = parse(__doc__, tuple(TRAININGS))
    training = TRAININGS[name]
    result.put(
        fix=training.fix,
        is_promised=training.is_promised,
        expected=sorted(training.expected),
        forbidden=sorted(training.forbidden),
    )
    torch.manual_seed(0)
    for variant, is_fixed in (("before", False), ("fixed", True)):
        measure_one(training, out, result, variant, name, is_fixed)


def measure_one(
    training: Training, out: Path, result: Result, variant: str, name: str, is_fixed: bool
) -> None:
    """Measure and record one variant of a training in this process."""
    began = time.perf_counter()
    job = training.build(is_fixed)
    blocks_ns = measured_step_ns(_stepper(job), 0.4 if ON_GPU else 0.1)
    values: dict[str, Any] = {
        "step_ns": median(blocks_ns),
        "blocks_ns": blocks_ns,
        "samples": job.samples,
    }
    result.put(**{variant: values})
    if name == "out-of-memory":
        # The history must hold the failed step, which comes once only.
        job = training.build(is_fixed)
    values["run"] = Path(record(job, out, f"{name}-{variant}", training.record)).name
    values["seconds"] = round(time.perf_counter() - began, 1)
    result.put(**{variant: values})
    del job
    gc.collect()
    if ON_GPU:
        values["peak_bytes"] = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.empty_cache()
        result.put(**{variant: values})


if __name__ == "__main__":
    main()
