"""Known patterns in operators that torch recorded: what they move, and what is none."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from tests.support.gpu_from_cpu import BYTES_PER_NS, FIXED_NS, gpu_trace_of

import stepscope
from stepscope.analysis.calls.fusible import PATTERNS
from stepscope.analysis.fusion import fusible_of, fusion
from stepscope.analysis.selection.gpu_work import recorded_work

torch = pytest.importorskip("torch")
F = torch.nn.functional

B, T, D, H = 2, 16, 64, 4
HALF = torch.bfloat16


def large(*shape: int, dtype=HALF):
    return torch.randn(*(shape or (B, T, D)), dtype=dtype, requires_grad=True)


WEIGHTS = {out: torch.randn(out, D, dtype=HALF) for out in (8, D, 512)}
QUANTISED = torch.randint(-128, 127, (D, D), dtype=torch.int8)
SCALES = torch.rand(D, 1, dtype=HALF)


def product(x, out: int = D):
    return F.linear(x, WEIGHTS[out])


def rms_norm(x, weight, dim=-1):
    wide = x.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(dim, keepdim=True) + 1e-6)
    return weight * wide.to(x.dtype)


def rotated(x):
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


@pytest.fixture
def found(tmp_path):
    """Patterns and how often each occurs, forward and backward, with all occurrences."""

    def of(run: Callable[[], object], **profiled):
        path = gpu_trace_of(run, tmp_path / "gpu.pt.trace.json", **profiled)
        trace = stepscope.load(path)
        fusible = fusible_of(trace, recorded_work(trace))
        counts: dict[str, tuple[int, int]] = {}
        for number, is_backward in fusible.occurrences.select("pattern", "is_backward").iter_rows():
            name = PATTERNS[number].name
            forward, backward = counts.get(name, (0, 0))
            counts[name] = (forward + (not is_backward), backward + is_backward)
        return counts, fusible

    return of


def test_rms_norm_moves_what_its_shapes_say(found):
    x, weight = large(), torch.ones(D, dtype=HALF, requires_grad=True)
    counts, fusible = found(lambda: rms_norm(x, weight).backward(x.detach()))
    assert counts == {"RMSNorm": (1, 1)}
    forward, backward = fusible.occurrences.sort("is_backward").iter_rows(named=True)
    n, rows = B * T * D, B * T
    small = 4 * (rows + rows + rows + rows) + 4 * rows + 2 * D
    # upcast, pow, mean, mul, downcast, weight
    now = (2 + 4) * n + 8 * n + 4 * n + 8 * n + (4 + 2) * n + 4 * n + small
    assert forward["bytes_now"] == now
    assert forward["bytes_saved"] == now - 2 * 2 * n
    assert forward["kernels"] == 8
    # The kernels are as long as their bytes need, and those on rows take the fixed time alone.
    assert forward["total_ns"] == pytest.approx(8 * FIXED_NS + now / BYTES_PER_NS, abs=40)
    assert forward["fused_ns"] == pytest.approx(FIXED_NS + 4 * n / BYTES_PER_NS, rel=0.05)
    assert backward["kernels"] > 8
    assert 3 * 2 * n == backward["bytes_now"] - backward["bytes_saved"]


def mixed(x, f):
    with torch.autocast("cpu", HALF):
        return f(x)


def rope(x, cos):
    return (x * cos) + (rotated(x) * cos)


def gelu_by_hand(x):
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))


def layer_norm_by_hand(x):
    u = x.mean(-1, keepdim=True)
    s = (x - u).pow(2).mean(-1, keepdim=True)
    return (x - u) / torch.sqrt(s + 1e-12)


def layer_norm_with_rsqrt(x):
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-5)


def cross_entropy(x):
    logits = product(x, 512).float()
    logits = logits[:, :-1].contiguous().view(-1, 512)
    labels = torch.randint(0, 512, (B, T))[:, 1:].contiguous().view(-1)
    return F.cross_entropy(logits, labels)


def attention(x):
    q = x.view(B, T, H, D // H).transpose(1, 2)
    scores = torch.matmul(q, q.transpose(2, 3)) / 4 + torch.zeros(T, T, dtype=x.dtype)
    return torch.matmul(F.softmax(scores, -1, dtype=torch.float32).to(x.dtype), q)


def dequantised(x):
    return F.linear(x, QUANTISED.to(x.dtype) * SCALES)


@pytest.mark.parametrize(
    ("name", "run", "times"),
    [
        ("RoPE", lambda x: rope(x, x.detach()), (1, 1)),
        ("SwiGLU", lambda x: product(F.silu(product(x)) * product(x)), (1, 1)),
        ("GEGLU", lambda x: product(F.gelu(product(x)) * product(x)), (1, 1)),
        ("GELU operator by operator", gelu_by_hand, (1, 1)),
        ("LayerNorm operator by operator", layer_norm_by_hand, (1, 1)),
        ("LayerNorm operator by operator", layer_norm_with_rsqrt, (1, 1)),
        ("LayerNorm with residual", lambda x: F.layer_norm(x + x.detach(), (D,)), (1, 0)),
        ("cross entropy with its logits", cross_entropy, (1, 1)),
        ("softmax attention", attention, (2, 0)),
        (
            "casts before matrix products",
            lambda x: mixed(x.float(), torch.nn.Linear(D, D, bias=False)),
            (1, 1),
        ),
        ("dequantisation before matrix products", dequantised, (1, 0)),
    ],
)
def test_a_pattern_is_recognised_with_its_backward(found, name, run, times):
    x = large()
    counts, fusible = found(lambda: run(x).sum().backward())
    assert counts == {name: times}
    now, then = fusible.occurrences["total_ns"], fusible.occurrences["fused_ns"]
    assert (then <= now).all()
    assert then.sum() < now.sum()
    assert fusible.occurrences["bytes_saved"].null_count() == 0
    assert (fusible.occurrences["bytes_saved"] >= 0).all()


@pytest.mark.parametrize(
    "name", ["RMSNorm", "RoPE", "SwiGLU", "cross entropy with its logits", "softmax attention"]
)
def test_without_shapes_patterns_are_recognised_by_their_operators(found, name):
    x, weight = large(), torch.ones(D, dtype=HALF, requires_grad=True)
    run = {
        "RMSNorm": lambda: rms_norm(x, weight),
        "RoPE": lambda: rope(x, x.detach()),
        "SwiGLU": lambda: product(F.silu(product(x)) * product(x)),
        "cross entropy with its logits": lambda: cross_entropy(x),
        "softmax attention": lambda: attention(x),
    }[name]
    counts, fusible = found(run, record_shapes=False)
    assert counts == {name: (1, 0)}
    (one,) = fusible.occurrences.iter_rows(named=True)
    assert one["bytes_now"] is None
    assert 0 <= one["fused_ns"] < one["total_ns"]


@pytest.mark.parametrize("kind", ["foreach", "for-loop"])
def test_adam_makes_a_third_of_the_passes_once_fused(found, kind):
    parameters = [torch.nn.Parameter(torch.randn(D, D)) for _ in range(5)]
    optimizer = torch.optim.AdamW(parameters, foreach=kind == "foreach", fused=False)
    for one in parameters:
        one.grad = torch.randn(D, D)
    counts, fusible = found(optimizer.step)
    assert counts == {"Adam, operator by operator": (1 if kind == "foreach" else 5, 0)}
    left = fusible.occurrences["fused_ns"].sum() / fusible.occurrences["total_ns"].sum()
    assert 0.15 < left < 0.4
    if kind == "for-loop":
        kept = fusible.occurrences["bytes_now"] - fusible.occurrences["bytes_saved"]
        assert kept.to_list() == [7 * 4 * D * D] * 5


def test_zero_grad_is_not_needed(found):
    layer = torch.nn.Linear(D, D)
    optimizer = torch.optim.SGD(layer.parameters(), foreach=False)

    def run():
        layer(torch.randn(T, D)).sum().backward()
        optimizer.zero_grad(set_to_none=False)

    counts, fusible = found(run)
    assert counts == {"zero_grad that writes zeros": (1, 0)}
    assert fusible.occurrences["fused_ns"].to_list() == [0]


def normalised_over_the_batch(x):
    return x * torch.rsqrt(x.pow(2).mean(0, keepdim=True) + 1e-6)


def squeeze_and_excite(x):
    # The gate has one number per channel, which is broadcast.
    return product(F.silu(product(x)) * product(x.mean(1, keepdim=True)))


def image_as_patches(x):
    patches = torch.randint(0, 255, (B * T, D), dtype=torch.uint8).to(x.dtype) / 255
    return F.linear(patches, torch.randn(D, D, dtype=x.dtype, requires_grad=True))


def loss_of_two_distributions(x):
    return F.kl_div(F.log_softmax(x, -1), x.detach().exp(), reduction="sum")


@pytest.mark.parametrize(
    "run",
    [
        normalised_over_the_batch,
        squeeze_and_excite,
        image_as_patches,
        loss_of_two_distributions,
        lambda x: F.layer_norm(x, (D,)),
        lambda x: F.rms_norm(x, (D,)),
        lambda x: x / (x.pow(2).mean(-1, keepdim=True) + 1e-6),
        lambda x: x / x.norm(dim=-1, keepdim=True),
        lambda x: F.batch_norm(x.transpose(1, 2).float(), None, None, training=True),
        lambda x: torch.cat((-x, x), -1) * 2,
        lambda x: F.silu(x) * x,
        lambda x: F.gelu(product(x)),
        lambda x: torch.softmax(product(x, 8), -1),
        lambda x: product(x).float(),
        lambda x: F.scaled_dot_product_attention(*[x[:, None]] * 3),
        lambda x: torch.zeros_like(x).zero_() + x,
        lambda x: (x * 2 + 1).tanh() * 3,
        lambda x: (x - x.mean(-1, keepdim=True)).pow(2).mean(),
    ],
)
def test_what_resembles_a_pattern_is_none(found, run):
    x = large()
    counts, _ = found(lambda: run(x).sum().backward())
    assert counts == {}


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.AdamW(p, fused=True),
        lambda p: torch.optim.SGD(p, momentum=0.9, foreach=False),
        torch.optim.Adafactor,
        lambda p: torch.optim.RMSprop(p, foreach=False),
    ],
)
def test_other_optimizers_are_none(found, optimizer):
    parameters = [torch.nn.Parameter(torch.randn(D, D))]
    chosen = optimizer(parameters)
    parameters[0].grad = torch.randn(D, D)
    counts, _ = found(chosen.step)
    assert counts == {}


def test_the_question_replays_each_pattern(tmp_path):
    x, weight = large(8, 256, 512), torch.ones(512, dtype=HALF, requires_grad=True)

    def run():
        for _ in range(20):
            rms_norm(x, weight)

    trace = stepscope.load(gpu_trace_of(run, tmp_path / "gpu.pt.trace.json"))
    result = fusion(trace)
    (row,) = result.patterns.iter_rows(named=True)
    assert row["pattern"] == "RMSNorm"
    assert row["occurrences"] == 20
    assert row["basis"] == "bytes"
    assert 0 <= row["saving_ns"] <= result.step_ns


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_what_checkpointing_runs_again_is_a_forward(found, use_reentrant):
    x, weight = large(), torch.ones(D, dtype=HALF, requires_grad=True)

    def run():
        torch.utils.checkpoint.checkpoint(
            rms_norm, x, weight, use_reentrant=use_reentrant
        ).sum().backward()

    counts, _ = found(run)
    forward, backward = counts["RMSNorm"]
    assert set(counts) == {"RMSNorm"}
    assert (forward, backward) == (2, 1)
