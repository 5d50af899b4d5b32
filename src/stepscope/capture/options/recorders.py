"""What can record the steps of a window."""

from __future__ import annotations

WINDOW_RECORDERS: dict[str, str | None] = {
    "torch": "torch_window",
    "cuda-range": "cuda_range",
    "tracemalloc": "python_memory",
    "none": None,
}
"""Values of the option `window_recorder`, each with the module of `stepscope.capture.windows` that
makes such windows; None if there are none.
"""
