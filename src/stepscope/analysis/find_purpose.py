"""What a recording shows: a training, or inference. No other place decides it.

Definitions
    Training: a backward pass or an optimizer is seen, by any of these: autograd's engine or its
    nodes (`MmBackward0`), operators of a backward pass (`aten::convolution_backward`), calls of
    `backward` in Python frames or ranges, `Optimizer.step`, kernels of a backward pass or of an
    optimizer; or the step record has phases of them.
    Inference: none of these, and steps of a serving engine, or matrix products or at least 50
    other operators that compute.
    Unknown: neither, as where no operator was recorded. Advice is then that for a training.

    A recording of a training that holds nothing but forward passes, such as an evaluation, is
    inference, too.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from stepscope.analysis.selection.names import names_that
from stepscope.analysis.selection.purpose import Purpose, Work
from stepscope.analysis.selection.scope import memoized
from stepscope.run.figures import plural
from stepscope.trace.classify import COMPUTE_GROUPS, MATRIX_GROUPS
from stepscope.trace.derive.main_thread import ENGINE
from stepscope.trace.derive.unannotated_steps import engine_of
from stepscope.trace.model import Trace
from stepscope.trace.schema import Category

_BACKWARD_NODE = r"Backward\d*$|AccumulateGrad$|_backward(_|$|\b)"
_BACKWARD_RANGE = r"(?i)(^|[^a-z])backward([^a-z]|$)"
_BACKWARD_FRAME = r"torch/(_tensor|autograd/__init__|autograd/graph)\.py\(\d+\): .*backward"
_OPTIMIZER_FRAME = r"torch/optim/\w+\.py\(\d+\): (step|_single_tensor_\w+|_multi_tensor_\w+)$"
_OPTIMIZER = r"^aten::_fused_(adam|adamw|sgd|adagrad)_?$"
_KERNEL = r"(?i)backward|(^|[^a-z])bwd|_bwd|wgrad|FusedOptimizer|fused_?(adam|sgd|lamb)"
_LEAST_OPERATORS = 50
_LIBRARIES = (
    ("transformers' pipeline", r"transformers/pipelines/\w+\.py\("),
    ("transformers' Trainer", r"transformers/trainer\w*\.py\("),
    ("sentence-transformers", r"sentence_transformers/\w+"),
    ("Lightning", r"(pytorch_)?lightning/pytorch/|pytorch_lightning/"),
)


@memoized
def purpose_of(trace: Trace) -> Purpose:
    """What a trace is of, by the names of everything in it."""
    name, category = pl.col("name"), pl.col("category").cast(pl.String)
    is_operator = category == Category.CPU_OP.value
    is_range = category.is_in([Category.CPU_OP.value, Category.USER_ANNOTATION.value])
    is_frame = category == Category.PYTHON_FUNCTION.value
    is_kernel = category == Category.KERNEL.value
    learning = (
        ("a backward pass", is_operator & name.str.starts_with(ENGINE)),
        ("an optimizer", pl.col("group") == "optimizer_step"),
        ("an optimizer", is_operator & name.str.contains(_OPTIMIZER)),
        ("a backward pass", is_operator & name.str.contains(_BACKWARD_NODE)),
        ("a backward pass", is_range & name.str.contains(_BACKWARD_RANGE)),
        ("a backward pass", is_frame & name.str.contains(_BACKWARD_FRAME)),
        ("an optimizer", is_frame & name.str.contains(_OPTIMIZER_FRAME)),
        ("kernels of a backward pass or an optimizer", is_kernel & name.str.contains(_KERNEL)),
    )
    libraries = ((word, is_frame & name.str.contains(like)) for word, like in _LIBRARIES)
    library = next((word for word, seen in _first_names(trace, *libraries) if seen), "")
    of_ranges = [Category.USER_ANNOTATION.value, Category.GPU_USER_ANNOTATION.value]
    ranges = trace.name_rows.filter(category.is_in(of_ranges))["name"]
    engine = next((found for found in map(engine_of, ranges.to_list()) if found), "")
    for what, seen in _first_names(trace, *learning):
        if seen is not None:
            return Purpose(Work.TRAINING, f"{what} ({seen[:60]})", engine, library)
    if engine:
        return Purpose(Work.INFERENCE, f"steps of {engine}, no backward pass", engine, library)
    computes = names_that(trace, is_operator & pl.col("group").is_in(COMPUTE_GROUPS))
    products = names_that(trace, is_operator & pl.col("group").is_in(MATRIX_GROUPS))
    name_id = trace.columns("name_id")["name_id"].to_numpy()
    if products.any() or int(computes[name_id].sum()) >= _LEAST_OPERATORS:
        operators = int(names_that(trace, is_operator)[name_id].sum())
        text = f"no backward pass and no optimizer among {plural(operators, 'operator')}"
        return Purpose(Work.INFERENCE, text, engine, library)
    return Purpose(Work.UNKNOWN, "too few operators were recorded", engine, library)


def _first_names(
    trace: Trace, *conditions: tuple[str, pl.Expr]
) -> Iterator[tuple[str, str | None]]:
    """For each word the first name that meets its condition; None: there is none."""
    firsts = (
        pl.col("name").filter(condition).first().alias(str(place))
        for place, (_, condition) in enumerate(conditions)
    )
    found = trace.name_rows.select(*firsts).row(0)
    return zip((word for word, _ in conditions), found, strict=True)
