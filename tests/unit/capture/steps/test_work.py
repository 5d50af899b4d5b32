"""How many samples and tokens a batch has: where it says so plainly, and nowhere else."""

from __future__ import annotations

from collections import UserDict

import pytest
import torch

from stepscope.capture.steps.work import UNKNOWN, added, work_of


def t(*shape):
    return torch.zeros(shape)


class Broken:
    @property
    def shape(self):
        raise RuntimeError("freed")


BATCHES = {
    "tensor": (t(4, 8), (4, None)),
    "inputs and targets": ([t(4, 8), t(4)], (4, None)),
    "with a number": ((t(4, 8), 3, None), (4, None)),
    "inputs in a mapping": (({"a": t(4, 2), "b": t(4)}, t(4)), (4, None)),
    "mapping": ({"pixels": t(4, 3, 8, 8), "labels": t(4), "scale": t()}, (4, None)),
    "texts": (UserDict(input_ids=t(4, 7), attention_mask=t(4, 7)), (4, 28)),
    "choices": ({"input_ids": t(4, 5, 7)}, (4, 140)),
    "texts and images": ({"input_ids": t(4, 7), "pixel_values": t(99, 6)}, (4, 28)),
    "packed": ({"input_ids": t(1, 70), "position_ids": t(1, 70)}, (None, 70)),
    "one row": ({"input_ids": t(70)}, (None, 70)),
    "an empty tensor": (t(0, 8), (0, None)),
    "different lengths": ([t(4, 8), t(5)], UNKNOWN),
    "single images": ([t(3, 8, 9), t(3, 9, 8)], UNKNOWN),
    "lists of images": (([t(3, 8, 9)] * 3, [{"boxes": t(3, 4)}] * 3), UNKNOWN),
    "samples not put together": ([{"input_ids": t(7)}, {"input_ids": t(7)}], UNKNOWN),
    "texts themselves": (["one", "two"], UNKNOWN),
    "mapping of lists": ({"prompt": ["one"], "ids": t(3)}, UNKNOWN),
    "different inside": (({"a": t(5, 2)}, t(4)), UNKNOWN),
    "nothing": (None, UNKNOWN),
    "empty": ([], UNKNOWN),
    "one that raises": (Broken(), UNKNOWN),
}


@pytest.mark.parametrize("kind", BATCHES)
def test_work_of_a_batch(kind):
    batch, work = BATCHES[kind]
    assert work_of(batch) == work


def test_work_that_is_not_known_of_one_batch_is_not_known_of_all():
    assert added((4, 28), (3, 21)) == (7, 49)
    assert added((4, 28), (3, None)) == (7, None)
    assert added((4, 28), UNKNOWN) == UNKNOWN
