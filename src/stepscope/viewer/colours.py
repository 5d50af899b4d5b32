"""Which colour a slice has: one number per category, the same in the page's `tokens.css`."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.trace.schema import Category, Kind


class Colour(IntEnum):
    """Numbers of colours. The page has one token for each: `--colour-compute` and so on."""

    OTHER = 0
    COMPUTE = 1
    """Matrix products, and all that computes together."""
    COMMUNICATION = 2
    COPY = 3
    FILL = 4
    OPERATOR = 5
    ANNOTATION = 6
    PYTHON = 7
    CALL = 8
    """Calls of the runtime or the driver."""
    SYNCHRONISATION = 9
    OVERHEAD = 10
    STEP = 11
    ATTENTION = 12
    CONVOLUTION = 13
    ELEMENTWISE = 14
    NORMALISATION = 15
    IDLE_DEVICE_WAIT = 16
    IDLE_INPUT = 17
    IDLE_SYNCHRONISATION = 18
    IDLE_ALLOCATION = 19
    IDLE_PAGEABLE_COPY = 20
    IDLE_ANNOTATED_PHASE = 21
    IDLE_OP_DISPATCH = 22
    IDLE_PYTHON = 23
    IDLE_UNKNOWN = 24
    IDLE_COMPILATION = 25
    IDLE_GARBAGE_COLLECTION = 26
    IDLE_WAITING_FOR_COMMUNICATION = 27
    IDLE_PROFILER = 28
    IDLE_GRAPH_GAP = 29
    IDLE_ONE_OFF = 30
    IDLE_BACKWARD = 31
    IDLE_NOT_RECORDED = 32
    REDUCTION = 33
    OTHER_KERNEL = 34
    IDLE_CPU_OPERATORS = 35


_BY_CATEGORY = {
    Category.CPU_OP: Colour.OPERATOR,
    Category.USER_ANNOTATION: Colour.ANNOTATION,
    Category.GPU_USER_ANNOTATION: Colour.ANNOTATION,
    Category.PYTHON_FUNCTION: Colour.PYTHON,
    Category.RUNTIME: Colour.CALL,
    Category.DRIVER: Colour.CALL,
    Category.DEVICE_SYNC: Colour.SYNCHRONISATION,
    Category.OVERHEAD: Colour.OVERHEAD,
    Category.COLLECTIVE: Colour.COMMUNICATION,
    Category.KERNEL: Colour.COMPUTE,
    Category.GPU_MEMCPY: Colour.COPY,
    Category.GPU_MEMSET: Colour.FILL,
}
_BY_KIND = {
    Kind.COMPUTE: Colour.COMPUTE,
    Kind.COMMUNICATION: Colour.COMMUNICATION,
    Kind.MEMCPY: Colour.COPY,
    Kind.MEMSET: Colour.FILL,
}
_BY_GROUP = {
    "gemm": Colour.COMPUTE,
    "attention": Colour.ATTENTION,
    "convolution": Colour.CONVOLUTION,
    "elementwise": Colour.ELEMENTWISE,
    "random": Colour.ELEMENTWISE,
    "normalisation": Colour.NORMALISATION,
    "softmax": Colour.NORMALISATION,
    "reduction": Colour.REDUCTION,
    "loss": Colour.REDUCTION,
}


def colours_of(category: pl.Series, kind: pl.Series) -> npt.NDArray[np.uint8]:
    """The colour of each event: of GPU work by its kind, of everything else by its category.

    Args:
        kind: `derived.kind`, row for row.
    """
    of_category = np.array([_BY_CATEGORY.get(c, Colour.OTHER) for c in Category], np.uint8)
    of_kind = np.array([_BY_KIND.get(k, Colour.OTHER) for k in Kind], np.uint8)
    by_kind = of_kind[kind.to_physical().to_numpy()]
    by_category = of_category[category.to_physical().to_numpy()]
    found: npt.NDArray[np.uint8] = np.where(by_kind > 0, by_kind, by_category)
    return found


def with_kernels(
    colours: npt.NDArray[np.uint8], name: npt.NDArray[np.integer], group: pl.Series
) -> npt.NDArray[np.uint8]:
    """The same, with a colour for each kind of kernel that computes.

    Args:
        name: The names of the events.
        group: `names.group`.
    """
    of_name = group.replace_strict(
        _BY_GROUP, default=Colour.OTHER_KERNEL, return_dtype=pl.UInt8
    ).to_numpy()
    found: npt.NDArray[np.uint8] = colours.copy()
    computes = np.flatnonzero(colours == Colour.COMPUTE)
    found[computes] = of_name[name[computes]]
    return found
