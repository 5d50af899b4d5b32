"""Which requests of one run grow with the batch: by what their operators were called with.

A dimension of a tensor that is made of the batch is a multiple of it. So a result none of whose
dimensions is a multiple stays. One that has the batch itself for a dimension, or the batch times
others as tensors are flattened (`[8, 64, 256]` becomes `[512, 256]`), grows. What pairs each of it
with each grows with its square: contrastive scores, or the scores of attention where the size is
the sequence's length. With any other multiple it may do either, and so may what could as well be of
a parameter's shape.

Where no shape was recorded, as in a snapshot, the category has to do: activations, caches, inputs
and temporaries whose bytes are a multiple of the batch grow, but for what the optimizer's step
makes. One of a parameter's size may be part of a gradient's computation, or the parameter in
another precision: it may do either, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.memory.categories.kinds import OF_BATCH, MemoryCategory, Source
from stepscope.memory.program.lines import stacks_with
from stepscope.memory.program.ranges import Phase
from stepscope.memory.view import MemoryView, OperatorCall, Shape

_OF_BATCH = [kind.value for kind in OF_BATCH]
_OF_MODEL = [MemoryCategory.PARAMETER.value, MemoryCategory.GRADIENT.value]
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
_PRECISIONS = (0.5, 1, 2)
_LEAST_BATCH = 2

_POWERS = {"stays": 0, "grows": 1, "squares": 2, "either": 0}


def by_batch(
    view: MemoryView, requests: pl.Series, batch: float
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """With what power of the batch some allocations of one run grow, and of what that is known."""
    of_optimizer = stacks_with(view.snapshot, r"/optim/[^:]*:")
    rows = view.allocations.select(
        "allocation",
        "requested_bytes",
        "start_event",
        "category",
        # What an inference keeps is guessed to be weights, but may be a cache, which grows; and a
        # static cache may be made for the batch, or fill the memory that there is.
        is_unknown=(pl.col("category") == MemoryCategory.UNKNOWN.value)
        | (
            (pl.col("category") == MemoryCategory.PARAMETER.value)
            & (pl.col("source") == Source.LIFETIME.value)
        )
        | (
            (pl.col("category") == MemoryCategory.CACHE.value)
            & (pl.col("source") == Source.SIZE.value)
        ),
        in_optimizer=(pl.col("phase") == Phase.OPTIMIZER.value).fill_null(value=False)
        | of_optimizer.gather(view.allocations["stack"]).fill_null(value=False),
    )
    mine = requests.to_frame("allocation").join(
        rows, on="allocation", how="left", maintain_order="left"
    )
    category, size = mine["category"], mine["requested_bytes"]
    is_of_batch = category.is_in(_OF_BATCH) & ~mine["in_optimizer"]
    of_model = mine.filter(category.is_in(_OF_MODEL))["requested_bytes"].unique()
    model_sizes = pl.concat([(of_model * factor).cast(pl.Int64) for factor in _PRECISIONS])
    is_model_sized = size.is_in(model_sizes.unique().implode())
    is_unknown = mine["is_unknown"]
    # What is the model's stays, whatever its shape looks like.
    may_grow = is_of_batch | (is_unknown & ~mine["in_optimizer"])
    shape = _by_shape(view, mine.with_columns(is_model_sized=is_model_sized), batch)
    shape = shape.set(~may_grow, None)
    is_ambiguous = is_of_batch & is_model_sized
    by_category = pl.DataFrame({"grows": is_of_batch & (size % batch == 0)}).select(
        grows="grows", is_known=pl.Series(~is_unknown & ~is_ambiguous)
    )
    has_shape = shape.is_not_null()
    power = shape.replace_strict(_POWERS, default=None, return_dtype=pl.Int64).zip_with(
        has_shape, by_category["grows"].cast(pl.Int64)
    )
    is_known = (shape != "either").zip_with(has_shape, by_category["is_known"])
    return power.to_numpy(), is_known.to_numpy()


def _by_shape(view: MemoryView, requests: pl.DataFrame, batch: float) -> pl.Series:
    """Of each request one of `_POWERS`; null where nothing says what was made."""
    nothing = pl.repeat(None, len(requests), dtype=pl.String, eager=True)
    if view.calls is None or batch != int(batch) or batch < _LEAST_BATCH:
        return nothing
    found = view.calls()
    law = _Law(int(batch), found.calls)
    key = ["call", "requested_bytes", "is_model_sized"]
    made = requests.join(found.table, on="start_event", how="left", maintain_order="left")
    of_model = made.filter(pl.col("category").is_in(_OF_MODEL)).select("call", "requested_bytes")
    for call, size in of_model.drop_nulls().unique().iter_rows():
        law.add_model(found.calls[call], size)
    law.find_squares(found.calls)
    kinds = made.select(key).drop_nulls("call").unique(maintain_order=True)
    laws = [law.of_result(found.calls[call], *rest) for call, *rest in kinds.iter_rows()]
    said = kinds.with_columns(shape=pl.Series(laws, dtype=pl.String))
    return made.join(said, on=key, how="left", maintain_order="left")["shape"]


class _Law:
    """Which shapes are made of a batch."""

    def __init__(self, batch: int, calls: Sequence[OperatorCall]) -> None:
        self._batch = batch
        self._made = {batch}  # with what it becomes as tensors are flattened from their front
        for call in calls:
            for shape in (*call.shapes, *(() if call.asked is None else (call.asked,))):
                if batch in shape[:2]:
                    self._made.update(prod(shape[:count]) for count in range(2, len(shape) + 1))
        self._model: set[Shape] = set()  # sorted, as weights are transposed
        self._squares: set[Shape] = set()
        self._pairs: set[Shape] = set()  # the last two dimensions of products

    def add_model(self, call: OperatorCall, size: int) -> None:
        """Notes the shape of a parameter or its gradient, as far as its operator says it."""
        shapes = _results(call) or [
            shape for shape in call.shapes if prod(shape) == size // call.element_bytes
        ]
        self._model.update(tuple(sorted(shape)) for shape in shapes)

    def find_squares(self, calls: Sequence[OperatorCall]) -> None:
        """Notes the shapes that pair each of the batch with each."""
        for call in calls:
            shapes = _matrices(call)[-2:]
            if len(shapes) < 2 or any(tuple(sorted(shape)) in self._model for shape in shapes):
                continue
            first, second = shapes
            if call.name in _PRODUCTS:
                pair = (first[-2], second[-1])
                # Of several products, each may be one of the batch, and both dimensions others.
                is_of_batch = len(first) > 2 and prod(first[:-2]) % self._batch == 0
                if all(dim in self._made for dim in pair) and not is_of_batch:
                    self._pairs.add(pair)
            elif (spread := self._spread(first, second)) is not None:
                self._squares.add(spread)

    def _is_square(self, shape: Shape) -> bool:
        return shape in self._squares or shape[-2:] in self._pairs

    def _spread(self, first: Shape, second: Shape) -> Shape | None:
        """The shape of two operands, each of which is spread along the other's batch."""
        pairs = list(zip(first, second, strict=False))
        is_first = any(one in self._made and other == 1 for one, other in pairs)
        is_second = any(other in self._made and one == 1 for one, other in pairs)
        is_spread = is_first and is_second and len(first) == len(second)
        return tuple(map(max, pairs)) if is_spread else None

    def of_result(self, call: OperatorCall, size: int, is_model_sized: bool) -> str | None:
        """How what an operator makes grows; None: nothing says.

        What is as large as a parameter may be one, or its gradient, unless the batch is one of
        its first dimensions, or it is a product that does not sum over the batch.
        """
        shapes = call.shapes if call.asked is None else (call.asked,)
        if not shapes:
            return None
        results = _results(call)
        found = (
            self._of_shape(results[0])
            if results
            else self._of_operands(shapes, size // call.element_bytes)
        )
        if call.name in _PRODUCTS and results:
            first, second = _matrices(call)[-2:]
            is_paired = self._is_square(first) or self._is_square(second)
            is_sum = first[-1] in self._made and not is_paired and found != "stays"
            return "either" if is_sum else found
        if found == "grows" and is_model_sized:
            is_batch = any(self._batch in shape[:-1][:2] for shape in shapes)
            return found if is_batch else "either"
        if found == "either" and is_model_sized:
            is_of_model = any(tuple(sorted(shape)) in self._model for shape in shapes)
            return "stays" if is_of_model else found
        return found

    def _of_operands(self, shapes: Sequence[Shape], count: int) -> str:
        """By the operand that is as large as the result, else by those that grow."""
        laws = [self._of_shape(shape) for shape in shapes]
        like = {law for law, shape in zip(laws, shapes, strict=True) if prod(shape) == count}
        if like:
            return like.pop() if len(like) == 1 else "either"
        if len(shapes) > 1:
            spread = self._spread(shapes[0], shapes[1])
            if spread is not None and prod(spread) == count:
                return "squares"
        for shape in shapes:
            if self._is_square(shape):
                made = [dim for dim in shape if dim in self._made]
                if count % prod(made) == 0:
                    return "squares"
                return "either" if any(count % dim == 0 for dim in made) else "stays"
        growing = [shape for law, shape in zip(laws, shapes, strict=True) if law == "grows"]
        if not growing:
            return "either" if "either" in laws else "stays"
        parts = {(shape, dim) for shape in growing for dim in shape if dim in self._made}
        if all(count % dim for _, dim in parts):
            return "stays"
        # What is summed over the batch stays, whatever else divides it.
        is_summed = any(count * dim == prod(shape) for shape, dim in parts)
        return "either" if is_summed else "grows"

    def _of_shape(self, shape: Shape) -> str:
        if self._is_square(shape):
            return "squares"
        if any(dim in self._made for dim in shape):
            return "grows"
        return "either" if any(dim and dim % self._batch == 0 for dim in shape) else "stays"


def _matrices(call: OperatorCall) -> list[Shape]:
    return [shape for shape in call.shapes if len(shape) > 1]


def _results(call: OperatorCall) -> list[Shape]:
    """The shape of what an operator makes, where it is asked for or a product; else nothing."""
    matrices = _matrices(call)
    if call.asked is not None:
        return [call.asked]
    if call.name in _PRODUCTS and len(matrices) > 1:
        return [(*matrices[-2][:-1], matrices[-1][-1])]
    return []
