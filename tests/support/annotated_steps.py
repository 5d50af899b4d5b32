"""How long annotated steps take, from the text of a trace alone."""

from __future__ import annotations

import itertools
import json
import re

_STEP = re.compile(r"ProfilerStep#\d+")
_ON_THE_GPU = "gpu_user_annotation"


def means_of_whole_steps(content: bytes) -> list[float]:
    """Milliseconds: the mean of every run of steps, each from its start to that of the next.

    What a single step's own annotation takes counts as well.
    """
    annotations = sorted(
        (float(one["ts"]), float(one["dur"]))
        for one in json.loads(content)["traceEvents"]
        if _STEP.fullmatch(str(one.get("name"))) and one["ph"] == "X" and one["cat"] != _ON_THE_GPU
    )
    starts = [start for start, _ in annotations]
    steps = [(after - before) / 1e3 for before, after in itertools.pairwise(starts)]
    return [length / 1e3 for _, length in annotations] + [
        sum(steps[first:last]) / (last - first)
        for first in range(len(steps))
        for last in range(first + 1, len(steps) + 1)
    ]
