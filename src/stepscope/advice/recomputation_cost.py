"""What it would cost to compute again what a line of the forward pass makes, from the trace.

A line of a memory snapshot is found again in the trace as the Python function around it: the frame
of the same file and name that begins last before the line. All that the function does counts, of
the forward pass: so the cost is an upper bound. It is the GPU's time, or the host's without a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from stepscope.advice.window_view import WindowView
from stepscope.analysis.call_tree import CallTree, build_call_tree
from stepscope.trace.schema import Category

_FRAME = re.compile(r"^(?:.*/)?([^/]+\.py)\((\d+)\): (.*)$")
_LINE = re.compile(r"^(?:.*/)?([^/]+\.py):(\d+) (.*)$")


def recomputation_ns(window: WindowView | None, lines: Sequence[str]) -> dict[str, int]:
    """Nanoseconds per step that the functions of some lines take.

    Args:
        window: The recorded window; None: there is none.
        lines: Lines as in `memory.program.lines`.

    Returns:
        Of each line that was found in the trace.
    """
    if window is None or not window.has_stacks:
        return {}
    nodes = window.once(_tree).nodes
    names, parents = nodes["name"].to_list(), nodes["parent"].to_list()
    spent = nodes["device_total_ns" if window.has_gpu else "host_total_ns"].to_list()
    frames = {name: _FRAME.match(name) for name in set(names)}
    costs = {}
    for line in lines:
        found = _LINE.match(line)
        if found is None:
            continue
        starts = [
            (int(frame[2][:9]), name)
            for name, frame in frames.items()
            if frame and frame[1] == found[1] and frame[3] == found[3]
        ]
        before = [one for one in starts if one[0] <= int(found[2][:9])]
        if not before:
            continue
        function = max(before)[1]
        rows = {row for row, name in enumerate(names) if name == function}
        total = sum(spent[row] for row in rows if not _is_within(row, rows, parents))
        costs[line] = window.per_step(total)
    return {line: cost for line, cost in costs.items() if cost}


def _tree(window: WindowView) -> CallTree:
    return build_call_tree(
        window.trace, window.scope, categories=(Category.PYTHON_FUNCTION,), merge_threads=True
    )


def _is_within(row: int, rows: set[int], parents: Sequence[int | None]) -> bool:
    """Whether a call is inside another of the same function."""
    parent = parents[row]
    while parent is not None and parent not in rows:
        parent = parents[parent]
    return parent is not None
