"""Which operators run a second time because of activation checkpointing.

An operator is recomputation if it belongs to a forward and runs inside the backward. There are
three kinds of evidence, the most certain first:

Python frames: the nearest of two kinds of frames around the operator decides. If it runs the
forward again (`recompute_fn` or `backward` of a checkpointing module of torch, fairscale, DeepSpeed
or Megatron), the operator is recomputation; if it is the engine's evaluation of a node, it is not.
Operators: the node of a reentrant checkpoint (`CheckpointFunctionBackward`) counts as such a frame.
Sequence numbers, if there are no Python frames: an operator that gets a new autograd number inside
the evaluation of a node ran with gradients enabled. Only recomputation does that, or a gradient of
a gradient. In the latter case the new nodes are evaluated in turn, or most nodes run numbered
operators (torch.func.grad always keeps the graph), where checkpointing runs a forward again in one
node for many; such a trace cannot be judged in this way. Operators below a numbered one are
recomputation too. Others that run without a number are missed, so this evidence gives a lower
bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.analysis.calls.operands import argument_texts
from stepscope.analysis.calls.operator_forest import operator_forest
from stepscope.analysis.calls.parents import parents_of_events
from stepscope.analysis.selection.names import names_that
from stepscope.analysis.selection.scope import memoized
from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.arrays.nullable import filled
from stepscope.trace.categories import is_one_of
from stepscope.trace.derive.ancestors import nearest_above
from stepscope.trace.model import Trace
from stepscope.trace.schema import Category

FRAMES = (
    r"(?i)(checkpoint(ing|_activations|_wrapper)?|tensor_parallel/random)\.py\(\d+\): "
    r"(recompute_fn|backward|recompute|_recompute)$"
)
"""Python frames that run a forward again."""

NODES = r"Checkpoint\w*Backward\w*$"
"""Autograd nodes that run a forward again."""

EVALUATION = r"^autograd::engine::evaluate_function"

BY_FRAMES = "Python frames"
BY_OPERATORS = "operators and sequence numbers (a lower bound)"
NOT_DETERMINED = "checkpoint operators alone: gradients of gradients hide the rest"


_FEW_NODES = 4
"""Of fewer nodes that run numbered operators, their share of all tells nothing."""


@dataclass(frozen=True, eq=False)
class Recomputed:
    """Which rows of a forest are recomputation."""

    rows: BoolArray
    basis: str


def names_matching(trace: Trace, pattern: str, *categories: Category) -> BoolArray:
    """For each name whether it matches and is of one of the categories."""
    return names_that(trace, pl.col("name").str.contains(pattern) & is_one_of(categories))


@memoized
def find_recomputed(trace: Trace) -> Recomputed:
    """Find the operators of a trace's forest that checkpointing runs again."""
    forest = operator_forest(trace)
    is_frame = names_matching(trace, FRAMES, Category.PYTHON_FUNCTION)
    is_node = names_matching(trace, NODES, Category.CPU_OP)
    is_evaluation = names_matching(trace, EVALUATION, Category.CPU_OP)
    is_node &= ~is_evaluation
    of_python = (pl.col("category") == Category.PYTHON_FUNCTION.value) & (
        pl.col("raw_category") == "python_function"
    )
    has_frames = bool(names_that(trace, of_python).any())
    if has_frames and not (is_frame | is_node).any():
        return Recomputed(np.zeros(len(forest), np.bool_), BY_FRAMES)
    name_id = trace.columns("name_id").to_series().to_numpy()
    parent = parents_of_events(trace)
    events = forest.rows["event"].to_numpy()

    again = is_frame | is_node
    deciding = nearest_above(parent, events, (again | is_evaluation)[name_id])
    inside = deciding >= 0
    rows = np.zeros(len(forest), np.bool_)
    rows[inside] = again[name_id[deciding[inside]]]
    rows &= ~is_evaluation[forest.name_id]
    if has_frames:
        return Recomputed(rows, BY_FRAMES)
    # Recomputation hangs right under the node that asked for it: those alone are worth reading.
    in_evaluation = inside & ~rows & ~is_evaluation[forest.name_id]
    in_evaluation[inside] &= is_evaluation[name_id[deciding[inside]]]
    above = forest.parent
    engine = np.concatenate((is_evaluation[forest.name_id], [False]))
    node = np.concatenate((above, [-1]))
    in_evaluation &= engine[above] | engine[node[above]]
    numbered = _numbered_by_autograd(trace, events, in_evaluation)
    if not numbered.any():
        return Recomputed(rows, BY_OPERATORS)
    asked = np.unique(deciding[in_evaluation])
    asking = np.unique(deciding[numbered])
    keeps_graph = len(asking) >= _FEW_NODES and 2 * len(asking) > len(asked)
    if numbered[forest.forward[forest.forward >= 0]].any() or keeps_graph:
        return Recomputed(rows, NOT_DETERMINED)
    below = forest.nearest(numbered | is_evaluation[forest.name_id])
    rows |= (below >= 0) & numbered[below]
    return Recomputed(rows, BY_OPERATORS)


def _numbered_by_autograd(trace: Trace, events: Int64Array, asking: BoolArray) -> BoolArray:
    """Which of the asking rows carry a sequence number of their own, with no forward thread."""
    wanted = pl.Series("event", events[asking])
    if wanted.is_empty():
        return asking.copy()
    texts = argument_texts(trace, wanted)
    own = texts.str.contains(r'"(?:Fwd thread id|fwd_thread_id)"\s*:\s*"?0(?:[^0-9]|$)')
    numbered = asking.copy()
    numbered[asking] = filled(own, value=False)
    return numbered
