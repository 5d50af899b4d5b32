"""Categories of memory, and how sure one is of them."""

from __future__ import annotations

from enum import Enum

import polars as pl


class MemoryCategory(str, Enum):
    """What a block of memory is for."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    """Of a module: running means, masks."""
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer_state"
    ACTIVATION = "activation"
    """Kept from the forward pass for the backward pass."""
    CACHE = "cache"
    """Kept from one call of an inference to the next: keys and values."""
    INPUT = "input"
    """Batches."""
    TEMPORARY = "temporary"
    """Freed in the pass that made it: results in between."""
    WORKSPACE = "workspace"
    """Of libraries: cuBLAS keeps one for each thread and stream, cuDNN one for each call."""
    COMMUNICATION = "communication"
    """Buffers of collectives."""
    UNKNOWN = "unknown"


OF_BATCH = (
    MemoryCategory.ACTIVATION, MemoryCategory.CACHE, MemoryCategory.INPUT, MemoryCategory.TEMPORARY,
)  # fmt: skip
"""What grows with the batch."""

CATEGORY = pl.Enum([member.value for member in MemoryCategory])


def of_kind(kind: MemoryCategory) -> pl.Expr:
    """A category as a column has it: in a byte, where a text takes sixteen."""
    return pl.lit(kind.value, dtype=CATEGORY)


STACKED = (
    MemoryCategory.PARAMETER.value,
    MemoryCategory.BUFFER.value,
    MemoryCategory.OPTIMIZER_STATE.value,
    MemoryCategory.GRADIENT.value,
    MemoryCategory.CACHE.value,
    MemoryCategory.ACTIVATION.value,
    MemoryCategory.INPUT.value,
    MemoryCategory.COMMUNICATION.value,
    MemoryCategory.WORKSPACE.value,
    MemoryCategory.TEMPORARY.value,
    MemoryCategory.UNKNOWN.value,
)
"""In the order in which pictures stack them: what stays is at the bottom."""


class Confidence(str, Enum):
    """How a category is known."""

    CERTAIN = "certain"
    """The training itself said so: by a census, an annotation, or torch's own recorder."""
    LIKELY = "likely"
    """By the stack of who asked for it."""
    GUESSED = "guessed"
    """By when it was made and freed."""
    NONE = "none"
    """Not at all."""


CONFIDENCE = pl.Enum([member.value for member in Confidence])


class Source(str, Enum):
    """What a category is known from."""

    CENSUS = "census"
    ANNOTATION = "annotation"
    RECORDER = "recorder"
    STACK = "stack"
    LIFETIME = "lifetime"
    SIZE = "size"
    NONE = "none"


SOURCE = pl.Enum([member.value for member in Source])
