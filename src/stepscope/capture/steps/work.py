"""Counts the samples and tokens of a batch, for integrations that receive the batches.

*Samples* are the rows of the batch: the common length of the first dimension of its tensors.
*Tokens* are the elements of its `input_ids`, padding included. Both refer to this rank only. They
are unknown if the batch does not plainly show them: tensors whose first dimensions differ, samples
that are not collated, sequences that are packed into one row, graphs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_PACKED = ("position_ids", "cu_seq_lens_q", "seq_idx")
"""Keys of a batch whose only row is made of several sequences."""
_IMAGE_DIMENSIONS = 3


@dataclass(frozen=True)
class Work:
    """The work of one or more batches: rows, and elements of `input_ids`; None if unknown."""

    samples: int | None
    tokens: int | None

    def __add__(self, other: Work) -> Work:
        return Work(_sum(self.samples, other.samples), _sum(self.tokens, other.tokens))

    def where_unknown(
        self, tokens: int | None, samples: int | None
    ) -> tuple[int | None, int | None]:
        """Tokens and samples: what the loop counts itself comes first."""
        return (
            self.tokens if tokens is None else tokens,
            self.samples if samples is None else samples,
        )


UNKNOWN = Work(None, None)


def work_of(batch: Any) -> Work:
    """The work of one batch. Reads shapes only, never raises, and never waits for a device."""
    try:
        if not isinstance(batch, Mapping):
            return Work(_rows_of(batch if isinstance(batch, list | tuple) else (batch,)), None)
        tokens = getattr(batch.get("input_ids"), "shape", None)
        if not tokens or not isinstance(tokens, tuple):
            return Work(_rows_of(batch.values(), has_names=True), None)
        rows = tokens[0] if len(tokens) > 1 else None
        if rows == 1 and any(batch.get(name) is not None for name in _PACKED):
            rows = None
        count: object = math.prod(tokens)
        return Work(rows, count if isinstance(count, int) else None)
    except Exception:  # noqa: BLE001 - a batch can be of any type, and none of our business
        return UNKNOWN


def _rows_of(parts: Iterable[Any], *, has_names: bool = False) -> int | None:
    """Rows of tensors side by side, such as inputs and targets; not of a list of samples."""
    # One function, without calls of others: it runs for every batch.
    rows, tensors, images = None, 0, 0
    inside: list[int | None] = []
    for part in parts:
        is_mapping = isinstance(part, Mapping)
        if is_mapping and not has_names:
            inside.append(work_of(part).samples)
            continue
        if is_mapping or isinstance(part, (list, tuple)):
            return None
        shape = getattr(part, "shape", None)  # of a tensor or an array
        if not shape or not isinstance(shape, tuple):
            continue
        for length in shape:
            if not isinstance(length, int):
                break
        else:
            if rows is not None and rows != shape[0]:
                return None
            rows = shape[0]
            tensors += 1
            images += len(shape) == _IMAGE_DIMENSIONS
    if tensors > 1 and tensors == images and not has_names:
        return None  # as likely single images as batches of sequences
    return rows if not inside or set(inside) == {rows} else None


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other
