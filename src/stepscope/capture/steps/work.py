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
    """The work done with one or more batches.

    Attributes:
        samples: Number of rows; None if unknown for any batch.
        tokens: Number of elements of `input_ids`; None if unknown for any batch.
    """

    samples: int | None
    tokens: int | None

    def __add__(self, other: Work) -> Work:
        return Work(_sum(self.samples, other.samples), _sum(self.tokens, other.tokens))


UNKNOWN = Work(None, None)


def work_of(batch: Any) -> Work:
    """The work of one batch. Reads shapes only, never raises, and never waits for a device."""
    try:
        if isinstance(batch, Mapping):
            return _work_of_mapping(batch)
        if isinstance(batch, list | tuple):
            return Work(_rows_of_sequence(batch), None)
        return Work(_common_rows([_shape(batch)]), None)
    except Exception:  # noqa: BLE001 - a batch can be of any type, and none of our business
        return UNKNOWN


def _work_of_mapping(batch: Mapping[Any, Any]) -> Work:
    tokens = _shape(batch.get("input_ids"))
    if not tokens:
        return Work(_rows_of_mapping(batch), None)
    rows = tokens[0] if len(tokens) > 1 else None
    if rows == 1 and any(batch.get(name) is not None for name in _PACKED):
        rows = None
    return Work(rows, math.prod(tokens))


def _rows_of_mapping(batch: Mapping[Any, Any]) -> int | None:
    if any(isinstance(value, list | tuple | Mapping) for value in batch.values()):
        return None
    return _common_rows(_shape(value) for value in batch.values())


def _rows_of_sequence(batch: Iterable[Any]) -> int | None:
    """Rows of tensors side by side, such as inputs and targets; not of a list of samples."""
    known: list[tuple[int, ...]] = []
    inside: list[int | None] = []
    for part in batch:
        if isinstance(part, Mapping):
            inside.append(work_of(part).samples)
        elif isinstance(part, list | tuple):
            return None
        else:
            shape = _shape(part)
            if shape:
                known.append(shape)
    if len(known) > 1 and {len(shape) for shape in known} == {_IMAGE_DIMENSIONS}:
        return None  # as likely single images as batches of sequences
    rows = _common_rows(known)
    return rows if not inside or set(inside) == {rows} else None


def _common_rows(shapes: Iterable[tuple[int, ...] | None]) -> int | None:
    rows: int | None = None
    for shape in shapes:
        if shape:
            if rows is not None and rows != shape[0]:
                return None
            rows = shape[0]
    return rows


def _shape(value: Any) -> tuple[int, ...] | None:
    """The dimensions of a tensor or an array; None for anything else."""
    shape = getattr(value, "shape", None)
    if not isinstance(shape, tuple):
        return None
    for length in shape:  # no generator: this runs for every batch
        if not isinstance(length, int):
            return None
    return shape


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other
