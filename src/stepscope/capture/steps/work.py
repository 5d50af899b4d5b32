"""Counts the samples and tokens of a batch, for integrations that receive the batches.

*Samples* are the rows of the batch: the common length of the first dimension of its tensors.
*Tokens* are the elements of its `input_ids`, padding included. Both refer to this rank only. They
are unknown if the batch does not plainly show them: tensors whose first dimensions differ, samples
that are not collated, sequences that are packed into one row, graphs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_PACKED = ("position_ids", "cu_seq_lens_q", "seq_idx")
"""Keys of a batch whose only row is made of several sequences."""
_IMAGE_DIMENSIONS = 3


Work = tuple[int | None, int | None]
"""Samples and tokens of one or more batches, None for unknown. No class: each step makes some, and
to make an object of a class takes 5 µs where the step has pushed that out of the CPU's caches."""
UNKNOWN: Work = (None, None)


def added(one: Work, other: Work) -> Work:
    """The work of both, unknown where that of one is."""
    samples, tokens = one
    more_samples, more_tokens = other
    return (
        None if samples is None or more_samples is None else samples + more_samples,
        None if tokens is None or more_tokens is None else tokens + more_tokens,
    )


def work_of(batch: Any) -> Work:
    """The work of one batch. Reads shapes only, never raises, and never waits for a device."""
    try:
        if isinstance(batch, (list, tuple)):
            return _rows_of(batch), None
        # A tensor has no `get`. To ask of one whether it is a mapping takes 7 µs in a cold cache.
        if not hasattr(batch, "get") or not isinstance(batch, (dict, Mapping)):
            return _rows_of((batch,)), None
        tokens = getattr(batch.get("input_ids"), "shape", None)
        if not tokens or not isinstance(tokens, tuple):
            return _rows_of(batch.values(), has_names=True), None
        rows = tokens[0] if len(tokens) > 1 else None
        if rows == 1 and any(batch.get(name) is not None for name in _PACKED):
            rows = None
        count: Any = 1
        for length in tokens:
            count *= length
        return rows, count if isinstance(count, int) else None
    except Exception:  # noqa: BLE001 - a batch can be of any type, and none of our business
        return UNKNOWN


def _rows_of(parts: Iterable[Any], *, has_names: bool = False) -> int | None:
    """Rows of tensors side by side, such as inputs and targets; not of a list of samples."""
    # One function, without calls of others: it runs for every batch. What has a shape is no
    # container, which is looked at last: to ask for a mapping takes longer than all else.
    rows, tensors, images = None, 0, 0
    inside: list[int | None] = []
    for part in parts:
        shape = getattr(part, "shape", None)  # of a tensor or an array
        if not shape or not isinstance(shape, tuple):
            if isinstance(part, (list, tuple)):
                return None
            if isinstance(part, (dict, Mapping)):
                if has_names:
                    return None
                inside.append(work_of(part)[0])
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
