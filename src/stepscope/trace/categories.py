"""Maps the event categories of all recorders, vendors and versions to one set."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.trace.arrays.blockwise import gather
from stepscope.trace.schema import Category

_RENAMED = {
    # PyTorch before 2022 capitalised these.
    "Operator": Category.CPU_OP,
    "Kernel": Category.KERNEL,
    "Runtime": Category.RUNTIME,
    "Memcpy": Category.GPU_MEMCPY,
    "Memset": Category.GPU_MEMSET,
    "Python": Category.PYTHON_FUNCTION,
    "User Annotation": Category.USER_ANNOTATION,
    "Overhead": Category.OVERHEAD,
    "Trace": Category.SPAN,
    "cpu_op": Category.CPU_OP,
    "user_annotation": Category.USER_ANNOTATION,
    "python_function": Category.PYTHON_FUNCTION,
    "kernel": Category.KERNEL,
    "gpu_memcpy": Category.GPU_MEMCPY,
    "gpu_memset": Category.GPU_MEMSET,
    "gpu_user_annotation": Category.GPU_USER_ANNOTATION,
    "overhead": Category.OVERHEAD,
    "collective_comm": Category.COLLECTIVE,
    "cuda_sync": Category.DEVICE_SYNC,
    "cuda_event": Category.DEVICE_SYNC,
    "xpu_sync": Category.DEVICE_SYNC,
    "mtia_ccp_events": Category.KERNEL,
    "hpu_op": Category.RUNTIME,  # recorded on the host
    "fee": Category.PYTHON_FUNCTION,  # VizTracer's "function entry and exit"
    "FEE": Category.PYTHON_FUNCTION,
}

_SUFFIXES = (
    ("_runtime", Category.RUNTIME),
    ("_driver", Category.DRIVER),
    ("_kernel", Category.KERNEL),
    ("_memcpy", Category.GPU_MEMCPY),
    ("_memset", Category.GPU_MEMSET),
    ("_sync", Category.DEVICE_SYNC),
)

_CODES = {category: code for code, category in enumerate(Category)}
"""How each category is stored in a column."""

GPU_CATEGORIES = (
    Category.KERNEL,
    Category.GPU_MEMCPY,
    Category.GPU_MEMSET,
    Category.GPU_USER_ANNOTATION,
    Category.DEVICE_SYNC,
)
"""Events on device lanes. Only the first three are GPU work."""

GPU_WORK = (Category.KERNEL, Category.GPU_MEMCPY, Category.GPU_MEMSET)
"""Events that keep a device busy."""

HOST_CALLS = (Category.RUNTIME, Category.DRIVER)
"""Host calls that launch work, copy, wait or allocate."""


def is_one_of(categories: Iterable[Category]) -> pl.Expr:
    """Whether a row has one of the given categories."""
    return pl.col("category").is_in([category.value for category in categories])


def code_of(category: Category) -> int:
    """Returns the number that stands for a category in its column (`Series.to_physical`)."""
    return _CODES[category]


def mask_of(events: pl.DataFrame, categories: Iterable[Category]) -> npt.NDArray[np.bool_]:
    """For each event, whether it has one of the given categories."""
    is_wanted = np.zeros(len(Category), np.bool_)
    is_wanted[[_CODES[category] for category in categories]] = True
    return gather(is_wanted, events["category"].to_physical().to_numpy())


def category_of(word: str | None) -> Category:
    """Returns the category for a recorder's own word.

    Words of new devices need no change here: they are recognised by their suffix
    (`mtia_runtime`, `privateuse1_driver`, `gcu_memcpy`, …).
    """
    if word is None:
        return Category.OTHER
    known = _RENAMED.get(word)
    if known is not None:
        return known
    return next(
        (category for suffix, category in _SUFFIXES if word.endswith(suffix)), Category.OTHER
    )
