"""What can record the steps of a window."""

from __future__ import annotations

WINDOW_RECORDERS: dict[str, str | None] = {
    "torch": "torch_window",
    "cuda-range": "cuda_range",
    "tracemalloc": "python_memory",
    "none": None,
}
"""What the option `window_recorder` may be, and the module of `stepscope.capture.windows` that has
the maker of such windows; None where there are none."""
