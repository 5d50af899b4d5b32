"""What of one run grows with the batch, by the shapes that its operators were called with."""

from __future__ import annotations

import pickle
from dataclasses import replace

import polars as pl
import pytest
from tests.support.allocator import Allocator
from tests.support.snapshot_tables import loaded
from tests.support.snapshots import Frames

from stepscope.memory.questions.bounded import Run
from stepscope.memory.questions.fit import will_it_fit
from stepscope.memory.view import MemoryView, OperatorCall, OperatorCalls

BATCH = 8
EMBEDDED = OperatorCall("aten::native_layer_norm", ((8, 64, 256), (256,), (256,)), 4, None)
"""From it follows that 512 is the batch times the length."""


LENGTH = OperatorCall("aten::native_layer_norm", ((6, 8, 256), (256,), (256,)), 4, None)
SCORES = OperatorCall("aten::bmm", ((30, 8, 16), (30, 16, 8)), 4, None)
"""Of attention over sequences of length 8, six with five heads each."""


def told(name, shapes, asked=None):
    return OperatorCall(name, shapes, 4, asked)


def factors(call, elements, others=(EMBEDDED,)):
    """By what the bytes of a result grow at the least and at the most, at twice the batch."""
    allocator, stack = Allocator(), Frames()
    forward = stack("model.py:4:forward", "torch/nn/modules/module.py:1:_call_impl")
    kept = allocator.malloc(4 * elements, frames=forward)
    allocator.malloc(512, frames=stack("a/torch/optim/adam.py:3:_init_group"))
    event = next(n for n, one in enumerate(allocator.events) if one["action"] == "alloc")
    calls = OperatorCalls(
        pl.DataFrame({"start_event": [event], "call": [len(others)]}), (*others, call)
    )
    allocator.free(kept)
    view = MemoryView(loaded(pickle.dumps(allocator.snapshot())))
    found = will_it_fit([Run(BATCH, replace(view, calls=lambda: calls))], [2 * BATCH])
    row = found.targets.row(-1, named=True)
    return tuple((row[name] - 512) / (4 * elements) for name in ("at_least_bytes", "at_most_bytes"))


@pytest.mark.parametrize(
    ("call", "elements"),
    [
        (told("aten::empty", (), (8, 64, 256)), 8 * 64 * 256),
        (told("aten::empty_strided", (), (512, 30)), 512 * 30),
        (told("aten::addmm", ((768,), (512, 256), (256, 768))), 512 * 768),
        (told("aten::relu", ((8, 64, 1024),)), 8 * 64 * 1024),
        (EMBEDDED, 8 * 64),  # the mean of each row
        (told("aten::cat", ((8, 64, 256), (8, 1, 256))), 8 * 65 * 256),
    ],
)
def test_what_has_the_batch_for_a_dimension_grows(call, elements):
    assert factors(call, elements) == (2, 2)


@pytest.mark.parametrize(
    ("call", "elements"),
    [
        (told("aten::mm", ((8, 32), (32, 8))), 8 * 8),  # scores of each with each
        (told("aten::sub", ((8, 1, 30), (1, 8, 30))), 8 * 8 * 30),
    ],
)
def test_what_pairs_each_of_the_batch_with_each_grows_with_the_square(call, elements):
    assert factors(call, elements) == (4, 4)


@pytest.mark.parametrize(
    ("call", "elements", "factor"),
    [
        (SCORES, 30 * 8 * 8, 4),
        (told("aten::_softmax", ((6, 5, 8, 8),)), 30 * 8 * 8, 4),
        (told("aten::empty", (), (8, 8)), 8 * 8, 4),  # a mask
        (told("aten::bmm", ((30, 8, 8), (30, 8, 16))), 30 * 8 * 16, 2),
        (told("aten::bmm", ((30, 16, 8), (30, 8, 8))), 30 * 16 * 8, 2),
        (told("aten::gelu", ((6, 8, 1024),)), 6 * 8 * 1024, 2),
    ],
)
def test_scores_of_attention_grow_with_the_square_of_the_length(call, elements, factor):
    assert factors(call, elements, (LENGTH, SCORES)) == (factor, factor)


def test_scores_of_attention_grow_with_the_batch():
    heads = told("aten::clone", ((8, 5, 64, 16),))
    scores = told("aten::bmm", ((40, 64, 16), (40, 16, 64)))
    assert factors(scores, 40 * 64 * 64, (EMBEDDED, heads)) == (2, 2)
    # A length that could be made of the batch is none where the products are the batch's.
    like = told("aten::bmm", ((40, 8, 16), (40, 16, 8)))
    assert factors(like, 40 * 8 * 8, (EMBEDDED, heads)) == (2, 2)


@pytest.mark.parametrize(
    ("call", "elements"),
    [
        (told("aten::empty", (), (63, 63)), 63 * 63),
        (told("aten::mul", ((63, 63), (63,))), 63 * 63),
        (told("aten::sum", ((512, 766),)), 766),
        (told("aten::nll_loss", ((512, 1000), (512,))), 1),
    ],
)
def test_what_has_no_multiple_of_the_batch_stays(call, elements):
    assert factors(call, elements) == (1, 1)


@pytest.mark.parametrize(
    ("call", "elements"),
    [
        (told("aten::empty", (), (96, 96)), 96 * 96),  # a mask, or the batch times heads
        (told("aten::mm", ((768, 512), (512, 256))), 768 * 256),  # summed over the batch
        (told("aten::sum", ((8, 64, 256),)), 64 * 256),
    ],
)
def test_what_shapes_do_not_decide_may_do_either(call, elements):
    assert factors(call, elements) == (1, 2)
