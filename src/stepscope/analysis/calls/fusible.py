"""Known patterns of kernels that one fused kernel replaces, and what each would no longer move.

Definitions
    The computing kernels of a stream, in order, are a text of letters, one for each call of an
    operator: `_LETTERS` names operators, and the kernels that stand for them where the operator is
    not known (CUDA graphs, launches that were not recorded). A pattern is a regular expression
    over that text. Where shapes were recorded, the tensors must also have the sizes that the
    pattern gives them. Other letters, such as those of compiled kernels, are in no pattern.
    The backward of an occurrence is the GPU work below the autograd nodes that were made between
    its first and its last operator, without matrix products and convolutions.
    What the occurrence moves is what each kernel reads and writes (`moved_bytes`); what a fused
    kernel moves is a number of passes over the largest tensor, in the narrowest type that the
    occurrence has it in.
    A fused kernel saves the bytes that are no longer moved over the memory's peak bandwidth, and
    for each kernel that goes what a kernel takes that moves next to nothing, measured in the same
    work. It keeps at least the share of the measured time that it has of the bytes. Where types or
    the device are not known, it keeps the share that it has of the elements. Where shapes are not
    known, it keeps the share that its passes have of those that its operators make at least, and
    takes no less than the longest kernel of the occurrence.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analysis.calls.call_sites import runs_under
from stepscope.analysis.calls.moved_bytes import bytes_of_operators
from stepscope.analysis.calls.operator_forest import operator_forest
from stepscope.analysis.calls.parents import parents_of_events
from stepscope.analysis.calls.recomputation import find_recomputed
from stepscope.analysis.selection.names import names_that
from stepscope.trace.arrays.blockwise import gather
from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.arrays.nullable import filled
from stepscope.trace.arrays.ordering import by_group_and_time
from stepscope.trace.derive.ancestors import nearest_of
from stepscope.trace.model import Trace

_COMPILE = "torch.compile"


@dataclass(frozen=True)
class Pattern:
    """A sequence of operators that one fused kernel replaces.

    Attributes:
        sequence: Regular expression over the letters. A group, if there is one, encloses the
            kernels that the pattern may hold; what stands around it is context.
        whole: Letters that work on the whole tensor.
        half: Letters that work on one half of it.
        rows: Letters that work on one number per row of it.
        takes_others: Whether other letters within belong to it, if they work on at least half of
            the whole tensor.
        forward: Passes over the tensor that a fused forward makes; 0: nothing is left to do.
        backward: The same of its backward; None: nothing of it is counted.
        is_before_products: Whether it is only one if its result is the second factor of the next
            matrix product.
    """

    name: str
    sequence: str
    whole: str
    forward: int
    backward: int | None
    replacement: str
    half: str = ""
    rows: str = ""
    takes_others: bool = False
    is_before_products: bool = False


_LETTERS: tuple[tuple[str, str, str | None, int], ...] = (
    # Letter; operators, without `aten::` and `_foreach_`; kernels of operators that are not known;
    # passes over a whole tensor that it makes at least.
    ("c", "copy_", r"direct_copy_kernel|(bfloat16|float16)_copy_kernel", 2),
    ("p", "pow|square", r"pow_tensor_scalar", 2),
    ("m", "mul_?", r"MulFunctor", 2),
    ("d", "div_?", r"DivFunctor|div_true_kernel", 2),
    ("a", "add_?", r"CUDAFunctor(OnSelf)?_add", 2),
    ("s", "sub_?|rsub", None, 2),
    ("e", "mean", r"MeanOps", 1),
    ("r", "rsqrt_?", r"rsqrt_kernel", 2),
    ("q", "sqrt_?", r"[^r]sqrt_kernel", 2),
    ("n", "neg", r"neg_kernel", 2),
    ("k", "cat", r"CatArrayBatchedCopy", 2),
    ("i", "silu", r"[^_]silu_kernel", 2),
    ("g", "gelu", r"GeluCUDAKernel|[^_]gelu_kernel", 2),
    ("t", "tanh", r"[^a-z]tanh_kernel", 2),
    ("w", "lerp_", None, 3),
    ("W", "addcmul_", None, 4),
    ("Z", "addcdiv_", None, 4),
    ("L", "_log_softmax", r"LogSoftMaxForward", 2),
    ("l", "nll_loss_forward", r"nll_loss_forward", 0),
    (
        "N",
        "native_layer_norm",
        r"vectorized_layer_norm_kernel|LayerNormForwardCUDA|RowwiseMoments",
        2,
    ),
    ("D", "native_dropout", r"fused_dropout_kernel", 2),
    ("z", "zero_|fill_", None, 1),
)
_PRODUCT, _BATCHED, _BARRIER, _SOFTMAX, _UNKNOWN = "G", "B", "X", "S", "."
_CAST, _DEQUANTISING, _ZERO_OF_GRADIENT = "o", "y", "0"
_OF_BACKWARDS = _PRODUCT + _BATCHED + _BARRIER + _SOFTMAX
_OPAQUE = ("triton", "recurrent")
_BATCHED_PRODUCTS = r"^aten::(bmm|baddbmm_?)$"
_PRODUCT_OPERATORS = r"^aten::(linear|matmul|mm|addmm|bmm|baddbmm|einsum|conv\dd|convolution)$"
_CONVERSIONS = r"^aten::(to|_to_copy)$"
_ZERO_GRAD = r"zero_grad(#.*)?$"

GONE, BYTES, PASSES = "not needed", "bytes", "passes"
"""What an occurrence's time once fused rests on: no kernel of it is needed; the bytes that are no
longer moved; the share of the passes over the tensor."""
_WIDEST = 1 << 16
_MOST_OUTER = 2
_NEXT_TO_NOTHING_NS = 100

ATTENTION = "softmax attention"
ADAM = "Adam, operator by operator"
ZERO_GRAD = "zero_grad that writes zeros"

_RMS_NORM = Pattern(
    "RMSNorm",
    r"(?<!e[sa])(?<!s)c?[pm]earmc?m",
    whole="cpem",
    rows="ar",
    forward=2,
    backward=3,
    replacement=f"torch.nn.functional.rms_norm under {_COMPILE}, Liger Kernel or Transformer "
    "Engine",
)

PATTERNS: tuple[Pattern, ...] = (
    # The more special ones first: kernels of one are in no other.
    Pattern(
        ATTENTION,
        r"B([^GBX]{0,15}S[^GBX]{0,15})(?=B)",
        whole="S",
        takes_others=True,
        forward=0,
        backward=None,
        replacement="torch.nn.functional.scaled_dot_product_attention",
    ),
    Pattern(
        "cross entropy with its logits",
        r"[cz]{0,5}Ll",
        whole="Ll",
        takes_others=True,
        # It reads the logits twice and writes their gradient in their place, at once.
        forward=3,
        backward=0,
        replacement=f"a fused cross entropy (Liger Kernel, Transformer Engine) or {_COMPILE}",
    ),
    _RMS_NORM,
    replace(_RMS_NORM, sequence=r"(?<!e[sa])(?<!s)c?[pm]earmc?"),  # without a weight
    Pattern(
        "LayerNorm operator by operator",
        r"c?es[pm]es?a(?:rm|qd)",
        whole="cespmd",
        rows="arq",
        forward=2,
        backward=3,
        replacement="torch.nn.functional.layer_norm",
    ),
    Pattern(
        "LayerNorm with dropout and residual",
        r"DaN+",
        whole="DaN",
        # It reads both addends and writes the sum and the result; the mask follows from the seed.
        forward=4,
        backward=None,
        replacement=f"{_COMPILE}, or a fused dropout, addition and normalisation (Transformer "
        "Engine, flash-attn)",
    ),
    Pattern(
        "LayerNorm with residual",
        r"(?<!D)aN+",
        whole="aN",
        forward=4,
        backward=None,
        replacement=f"{_COMPILE}, or a fused addition and normalisation",
    ),
    Pattern(
        "RoPE",
        r"(?:mnkc?m|nkc?mm)a",
        whole="mkca",
        half="n",
        forward=2,
        backward=2,
        replacement=f"Liger Kernel's or Transformer Engine's rotary embedding, or {_COMPILE}",
    ),
    Pattern(
        "RoPE",
        r"mmsmmak",
        whole="k",
        half="msa",
        forward=2,
        backward=2,
        replacement=f"Liger Kernel's or Transformer Engine's rotary embedding, or {_COMPILE}",
    ),
    Pattern(
        "SwiGLU",
        r"(?<=G)(ic?o*G?m)(?=[oD]*G)",
        whole="im",
        forward=3,
        backward=5,
        replacement=f"Liger Kernel's SwiGLU, Transformer Engine's LayerNormMLP, or {_COMPILE}",
    ),
    Pattern(
        "GEGLU",
        r"(?<=G)(gc?o*G?m)(?=[oD]*G)",
        whole="gm",
        forward=3,
        backward=5,
        replacement=f"Liger Kernel's GEGLU, Transformer Engine's LayerNormMLP, or {_COMPILE}",
    ),
    Pattern(
        "GELU operator by operator",
        r"mpmamtam",
        whole="mpat",
        forward=2,
        backward=3,
        replacement="torch.nn.functional.gelu(approximate='tanh')",
    ),
    Pattern(
        ADAM,
        r"[ma]?(?:w|ma)mWqd{1,2}aZ",
        whole="maWwqdZ",
        # It reads parameter, gradient and both moments, and writes all but the gradient.
        forward=7,
        backward=None,
        replacement="the optimizer's fused=True",
    ),
    Pattern(
        ZERO_GRAD,
        r"0+",
        whole="",
        takes_others=True,
        forward=0,
        backward=None,
        replacement="zero_grad(set_to_none=True)",
    ),
    Pattern(
        "dequantisation before matrix products",
        r"(y[smda]{0,3})(?=[oc]*[GB])",
        whole="y",
        takes_others=True,
        forward=0,
        backward=None,
        replacement="a matrix product that takes the quantised weight (torchao, Marlin kernels)",
        is_before_products=True,
    ),
    Pattern(
        "casts before matrix products",
        r"o+",
        whole="",
        takes_others=True,
        forward=0,
        backward=0,
        replacement="weights kept in the type of the products (with a master copy in the "
        f"optimizer), and {_COMPILE} for the activations",
    ),
)
"""Sequences that one fused kernel replaces, the more special ones first."""


@dataclass(frozen=True, eq=False)
class Fusible:
    """The patterns among some GPU work.

    Attributes:
        rows: Row for row beside the work: pattern (its number in `PATTERNS`, -1: none), occurrence
            (a row of `occurrences`, -1: none), fused_ns (how long the row takes once fused: the
            rows of an occurrence share what is left), goes (its kernel goes), is_product (it is a
            product on either side of softmax attention).
        occurrences: pattern, is_backward, kernels, total_ns, fused_ns, bytes_now and bytes_saved
            (null: not known), and basis (what fused_ns rests on: `GONE` and its like).
    """

    rows: pl.DataFrame
    occurrences: pl.DataFrame

    def are_of(self, *names: str) -> BoolArray:
        """Which rows are of patterns of some names."""
        numbers = [number for number, one in enumerate(PATTERNS) if one.name in names]
        found: BoolArray = np.isin(self.rows["pattern"].to_numpy(), numbers)
        return found

    def occurrences_of(self, name: str) -> pl.DataFrame:
        """The occurrences of the patterns of one name."""
        if self.occurrences.is_empty():
            return self.occurrences
        numbers = [number for number, one in enumerate(PATTERNS) if one.name == name]
        return self.occurrences.filter(pl.col("pattern").is_in(numbers))


def find_fusible(trace: Trace, work: pl.DataFrame, speed: npt.NDArray[np.float64]) -> Fusible:
    """Find the patterns.

    Args:
        work: GPU work with kind, group, name_id, lane_id, start_ns, dur_ns and op, in any order.
        speed: Peak of the memory's bandwidth for each row (`hardware.devices.memory_speeds`).
    """
    letters = _letters(trace, work)
    calls = _calls(trace, work, letters)
    found = _Occurrences.empty(calls)
    for number in range(len(PATTERNS)):
        _add_pattern(calls, found, number)
    occurrence = np.full(len(work), -1, np.int64)
    occurrence[calls.rows] = found.occurrence[calls.call_of_row]
    is_product = np.zeros(len(work), np.bool_)
    is_product[calls.rows] = found.is_product[calls.call_of_row]
    occurrence = _with_backward(trace, work, letters, calls, found, occurrence)
    return _with_times(trace, work, speed, letters, found, occurrence, is_product)


@dataclass(frozen=True, eq=False)
class _Calls:
    """Calls of operators that launched GPU work, by stream and in order.

    Attributes:
        rows: Rows of the work, by stream and start.
        op: Event of each call's operator; -1: not known.
        moved: What each moves: the columns of `moved_bytes.SCHEMA`.
    """

    rows: Int64Array
    call_of_row: Int64Array
    letter: npt.NDArray[np.uint8]
    lane: Int64Array
    op: Int64Array
    moved: pl.DataFrame

    def __len__(self) -> int:
        return len(self.op)

    def number(self, column: str) -> Int64Array:
        """A column of `moved`; -1 for what is not known."""
        return filled(self.moved[column], -1).astype(np.int64, copy=False)


@dataclass(eq=False)
class _Occurrences:
    """Occurrences of patterns among calls, found one pattern after another.

    Attributes:
        pattern: Of each call; -1: none.
        occurrence: Of each call; -1: none.
        is_product: For each call whether it is a product beside softmax attention.
        elements: Of the whole tensor; -1: not known.
        item_bytes: Size of its elements in the narrowest type; 0: not known.
    """

    pattern: Int64Array
    occurrence: Int64Array
    is_product: BoolArray
    pattern_of: Int64Array
    first: Int64Array
    last: Int64Array
    elements: Int64Array
    item_bytes: Int64Array

    @classmethod
    def empty(cls, calls: _Calls) -> _Occurrences:
        nothing = np.full(len(calls), -1, np.int64)
        none = np.zeros(0, np.int64)
        is_product = np.zeros(len(calls), np.bool_)
        return cls(nothing, nothing.copy(), is_product, none, none, none, none, none)


def _letters(trace: Trace, work: pl.DataFrame) -> npt.NDArray[np.uint8]:
    names = trace.name_rows["name"].fill_null("")
    name_id, op = work["name_id"].to_numpy(), filled(work["op"], -1).astype(np.int64)
    by_kernel = _by_name(
        names, name_id, [(one, kernels) for one, _, kernels, _ in _LETTERS if kernels]
    )
    of_operator = trace.columns("name_id")["name_id"].to_numpy()[np.maximum(op, 0)]
    is_operator = [(letter, rf"^aten::(_foreach_)?({own})$") for letter, own, *_ in _LETTERS]
    letters = _by_name(names, of_operator, is_operator)
    is_aten = np.zeros(len(names), np.bool_)
    used = np.flatnonzero(np.bincount(of_operator, minlength=len(names)))
    is_aten[used] = names[used].str.starts_with("aten::").to_numpy()
    np.copyto(letters, by_kernel, where=(op < 0) | ~is_aten[of_operator])
    group = work["group"].fill_null("")
    batched = _by_name(names, of_operator, [(_BATCHED, _BATCHED_PRODUCTS)]) == ord(_BATCHED)
    is_gemm = (group == "gemm").to_numpy()
    letters[((group == "softmax").to_numpy()) & (letters != ord("L"))] = ord(_SOFTMAX)
    letters[is_gemm] = ord(_PRODUCT)
    letters[is_gemm & batched & (op >= 0)] = ord(_BATCHED)
    is_barrier = group.is_in(["convolution", "attention"]) | (work["kind"] == "communication")
    letters[is_barrier.fill_null(value=False).to_numpy()] = ord(_BARRIER)
    letters[group.is_in(_OPAQUE).to_numpy()] = ord(_UNKNOWN)
    is_dequantising = (
        _by_name(names, name_id, [(_DEQUANTISING, r"(?i)dequant")]) != ord(_UNKNOWN)
    ) & ~is_gemm
    letters[is_dequantising] = ord(_DEQUANTISING)
    copies = np.flatnonzero((letters == ord("c")) & (op >= 0))
    if len(copies):
        chosen = work[copies]
        is_cast = runs_under(trace, chosen, _CONVERSIONS)
        is_cast &= runs_under(trace, chosen, _PRODUCT_OPERATORS)
        letters[copies[is_cast]] = ord(_CAST)
    fills = np.flatnonzero((letters == ord("z")) & (op >= 0))
    if len(fills):
        is_zeroing = names_that(trace, pl.col("name").str.contains(_ZERO_GRAD))
        around = nearest_of(
            parents_of_events(trace), op[fills], gather(is_zeroing, _name_ids(trace))
        )
        letters[fills[around >= 0]] = ord(_ZERO_OF_GRADIENT)
    # A backward is found by its forward, not by letters of its own; attention's is the exception.
    letters[_in_backward(trace, op) & ~np.isin(letters, _codes(_OF_BACKWARDS))] = ord(_UNKNOWN)
    return letters


def _in_backward(trace: Trace, op: Int64Array) -> BoolArray:
    """Whether each operator runs in a backward; what is recomputed there is a forward."""
    has_forward = trace.derived_numbers("forward").is_not_null().to_numpy()
    if not has_forward.any():
        return np.zeros(len(op), np.bool_)
    again = np.zeros(len(has_forward), np.bool_)
    again[operator_forest(trace).rows["event"].to_numpy()[find_recomputed(trace).rows]] = True
    parent = parents_of_events(trace)
    inside: BoolArray = nearest_of(parent, op, has_forward) >= 0
    if again.any():
        inside &= nearest_of(parent, op, again) < 0
    return inside


def _name_ids(trace: Trace) -> npt.NDArray[np.uint32]:
    return trace.columns("name_id")["name_id"].to_numpy()


def _by_name(
    names: pl.Series, name_id: npt.NDArray[np.uint32], patterns: list[tuple[str, str]]
) -> npt.NDArray[np.uint8]:
    """The letter of the first pattern that each name matches."""
    used = np.flatnonzero(np.bincount(name_id, minlength=len(names)))
    text = names[used].to_frame("name")
    matches = [pl.when(pl.col("name").str.contains(own)).then(ord(one)) for one, own in patterns]
    found = text.select(pl.coalesce(*matches, pl.lit(ord(_UNKNOWN)))).to_series()
    letters = np.zeros(len(names), np.uint8)
    letters[used] = found.to_numpy()
    return letters[name_id]


def _calls(trace: Trace, work: pl.DataFrame, letters: npt.NDArray[np.uint8]) -> _Calls:
    op, lane = filled(work["op"], -1).astype(np.int64), work["lane_id"].to_numpy()
    is_computing = work["kind"].is_in(["compute", "communication"]).fill_null(value=False)
    rows = np.flatnonzero(is_computing.to_numpy() | (letters == ord(_ZERO_OF_GRADIENT)))
    rows = rows[by_group_and_time(lane[rows], work["start_ns"].to_numpy()[rows])]
    begins = np.ones(len(rows), np.bool_)
    begins[1:] = (lane[rows][1:] != lane[rows][:-1]) | (op[rows][1:] < 0)
    begins[1:] |= op[rows][1:] != op[rows][:-1]
    first = rows[begins]
    events = pl.Series("op", op[first])
    moved = bytes_of_operators(trace, events.set(events < 0, None))
    letter = letters[first]
    is_copy = (letter == ord("c")) | (letter == ord(_CAST))
    letter[is_copy & filled(moved["dequantises"], value=False)] = ord(_DEQUANTISING)
    return _Calls(rows, np.cumsum(begins) - 1, letter, lane[first], op[first], moved)


def _add_pattern(calls: _Calls, found: _Occurrences, number: int) -> None:
    pattern = PATTERNS[number]
    first, end = _spans(calls, pattern.sequence)
    if not len(first):
        return
    length = end - first
    of = np.repeat(np.arange(len(first)), length)
    call = np.arange(len(of)) + np.repeat(first - (np.cumsum(length) - length), length)
    letter, size = calls.letter[call], calls.number("elements")[call]

    def is_in(letters: str) -> BoolArray:
        chosen: BoolArray = np.isin(letter, np.frombuffer(letters.encode(), np.uint8))
        return chosen

    whole, half, rows = is_in(pattern.whole), is_in(pattern.half), is_in(pattern.rows)
    elements, side = np.full(len(first), -1, np.int64), np.zeros(len(first), np.int64)
    np.maximum.at(elements, of[whole], size[whole])
    np.maximum.at(side, of[whole], calls.number("last_side")[call[whole]])
    unit = elements[of]
    is_known = (size >= 0) & (unit >= 0)
    fits = np.ones(len(call), np.bool_)
    fits[whole] = 4 * size[whole] >= 3 * unit[whole]
    fits[half] = (8 * size[half] >= 3 * unit[half]) & (8 * size[half] <= 5 * unit[half])
    fits[rows] = size[rows] * side[of][rows] == unit[rows]
    fits |= ~is_known
    belongs = whole | half | rows
    if pattern.takes_others:
        large = ~is_known | (2 * size >= unit)
        belongs |= large & ~is_in(_PRODUCT + _BATCHED + _BARRIER)
    refused = ~fits | (belongs & (found.pattern[call] >= 0))
    is_refused = np.zeros(len(first), np.bool_)
    is_refused[of[refused]] = True
    if pattern.is_before_products:
        is_refused |= ~_are_second_factors(calls, end, elements)
    item = calls.number("item_bytes")[call]
    narrowest = np.full(len(first), _WIDEST, np.int64)
    has_item = (item > 0) & (4 * size >= 3 * unit)
    np.minimum.at(narrowest, of[has_item], item[has_item])
    kept = np.flatnonzero(~is_refused)
    number_of = np.full(len(first), -1, np.int64)
    number_of[kept] = len(found.pattern_of) + np.arange(len(kept))
    mine = belongs & ~is_refused[of]
    found.pattern[call[mine]], found.occurrence[call[mine]] = number, number_of[of[mine]]
    if pattern.name == ATTENTION:
        found.is_product[first[kept] - 1] = True
        found.is_product[end[kept]] = True
    narrowest[narrowest == _WIDEST] = 0
    found.pattern_of = np.append(found.pattern_of, np.full(len(kept), number))
    found.first = np.append(found.first, first[kept])
    found.last = np.append(found.last, end[kept] - 1)
    found.elements = np.append(found.elements, elements[kept])
    found.item_bytes = np.append(found.item_bytes, narrowest[kept])


def _spans(calls: _Calls, sequence: str) -> tuple[Int64Array, Int64Array]:
    """First call of each match of a sequence, and the one after its last."""
    expression = re.compile(sequence.encode())
    group = min(1, expression.groups)
    firsts: list[int] = []
    ends: list[int] = []
    edges = np.flatnonzero(calls.lane[1:] != calls.lane[:-1]) + 1
    for begin, stop in zip([0, *edges.tolist()], [*edges.tolist(), len(calls)], strict=True):
        for match in expression.finditer(calls.letter[begin:stop].tobytes()):
            firsts.append(begin + match.start(group))
            ends.append(begin + match.end(group))
    return np.asarray(firsts, np.int64), np.asarray(ends, np.int64)


def _are_second_factors(calls: _Calls, end: Int64Array, elements: Int64Array) -> BoolArray:
    """Whether each result has the size of the next product's second factor, as far as known."""
    is_product = np.isin(calls.letter, np.frombuffer((_PRODUCT + _BATCHED).encode(), np.uint8))
    index = np.where(is_product, np.arange(len(calls)), len(calls))
    following = np.minimum.accumulate(index[::-1])[::-1]
    factor = np.append(calls.number("second_matrix"), -1)[np.append(following, len(calls))[end]]
    # Where shapes were not recorded, the kernel's own name says that it dequantises.
    fits: BoolArray = (elements < 0) | (factor == elements)
    return fits


def _with_backward(
    trace: Trace,
    work: pl.DataFrame,
    letters: npt.NDArray[np.uint8],
    calls: _Calls,
    found: _Occurrences,
    occurrence: Int64Array,
) -> Int64Array:
    """The occurrence of each row with those of backwards, which are numbered after all others."""
    counted = np.array([one.backward is not None for one in PATTERNS])
    with_one = np.flatnonzero(counted[found.pattern_of])
    begins, ends = calls.op[found.first[with_one]], calls.op[found.last[with_one]]
    known = (begins >= 0) & (ends >= 0)
    with_one, begins, ends = with_one[known], begins[known], ends[known]
    forward = trace.derived_numbers("forward")
    if not len(with_one) or not forward.is_not_null().any():
        return occurrence
    parent, op = parents_of_events(trace), filled(work["op"], -1).astype(np.int64)
    open_rows = np.flatnonzero(
        (op >= 0) & (occurrence < 0) & ~np.isin(letters, _codes(_PRODUCT + _BATCHED + _BARRIER))
    )
    node = nearest_of(parent, op[open_rows], forward.is_not_null().to_numpy()).astype(np.int64)
    open_rows, node = open_rows[node >= 0], node[node >= 0]
    made_by = forward.gather(node).to_numpy().astype(np.int64)
    is_product = gather(
        names_that(trace, pl.col("name").str.contains(_PRODUCT_OPERATORS)), _name_ids(trace)
    )
    open_rows, made_by = open_rows[~is_product[made_by]], made_by[~is_product[made_by]]
    columns = trace.columns("lane_id", "start_ns", "dur_ns")
    lane = columns["lane_id"].to_numpy().astype(np.int64)
    start, dur = columns["start_ns"].to_numpy(), columns["dur_ns"].to_numpy()
    # The node of a conversion is made by the operator around the copy.
    is_conversion = gather(
        names_that(trace, pl.col("name").str.contains(_CONVERSIONS)), _name_ids(trace)
    )
    for _ in range(_MOST_OUTER):
        outer = parent[begins].astype(np.int64)
        begins = np.where((outer >= 0) & is_conversion[outer], outer, begins)
    result = occurrence.copy()
    # What lies within another occurrence comes first: casts within products.
    for number in reversed(range(len(PATTERNS))):
        mine = np.flatnonzero(found.pattern_of[with_one] == number)
        for thread in np.unique(lane[begins[mine]]).tolist():
            here = mine[lane[begins[mine]] == thread]
            here = here[np.argsort(start[begins[here]], kind="stable")]
            left = np.flatnonzero((result[open_rows] < 0) & (lane[made_by] == thread))
            if not len(left):
                continue
            first = start[begins[here]]
            last = start[ends[here]] + dur[ends[here]]
            place = np.searchsorted(first, start[made_by[left]], side="right") - 1
            inside = (place >= 0) & (start[made_by[left]] <= last[np.maximum(place, 0)])
            chosen = with_one[here[place[inside]]]
            result[open_rows[left[inside]]] = len(found.pattern_of) + chosen
    return result


def _codes(letters: str) -> npt.NDArray[np.uint8]:
    return np.frombuffer(letters.encode(), np.uint8)


def _with_times(
    trace: Trace,
    work: pl.DataFrame,
    speeds: npt.NDArray[np.float64],
    letters: npt.NDArray[np.uint8],
    found: _Occurrences,
    occurrence: Int64Array,
    is_product: BoolArray,
) -> Fusible:
    forwards = len(found.pattern_of)
    rows = np.flatnonzero(occurrence >= 0)
    of = occurrence[rows]
    origin = of % max(1, forwards)
    passes = np.array([[one.forward, one.backward or 0] for one in PATTERNS])
    number = np.arange(2 * forwards)
    left = passes[np.tile(found.pattern_of, 2), number // max(1, forwards)]
    chosen = work["dur_ns", "op"][rows]
    dur = chosen["dur_ns"].to_numpy()
    moved = bytes_of_operators(trace, chosen["op"])
    op = filled(chosen["op"], -1)
    # Several kernels of one call move its operands once.
    repeats = pl.DataFrame({"of": of, "op": op}).select(
        (pl.struct("of", "op").is_first_distinct().not_()) & (pl.col("op") >= 0)
    )
    is_repeated = repeats.to_series().to_numpy()
    item = found.item_bytes[origin]
    typed = moved.select(pl.col("read_bytes") + pl.col("written_bytes")).to_series()
    untyped = moved.select(pl.col("untyped_read") + pl.col("untyped_written")).to_series()
    # Without any type, all have one: then bytes are in proportion to elements.
    each = filled(typed, 0) + filled(untyped, 0) * np.maximum(item, 1)
    each = np.where(is_repeated, 0, each)
    is_unknown = moved["read_bytes"].is_null().to_numpy()
    speed = speeds[rows]

    def total(values: Int64Array) -> Int64Array:
        return np.bincount(of, values, 2 * forwards).astype(np.int64)

    whole_ns, now = total(dur), total(each)
    kernels = np.bincount(of, minlength=2 * forwards)
    longest = np.zeros(2 * forwards, np.int64)
    np.maximum.at(longest, of, dur)
    slowest = np.full(2 * forwards, np.inf)
    np.minimum.at(slowest, of, np.nan_to_num(speed, nan=np.inf))
    unknown = np.zeros(2 * forwards, np.bool_)
    unknown[of[is_unknown]] = True
    tensors = np.maximum(np.tile(found.elements * np.maximum(found.item_bytes, 1), 2), 0)
    kept = np.minimum(left * tensors, now)
    has_types = ~unknown & (np.tile(found.item_bytes, 2) > 0)
    by_bytes = has_types & np.isfinite(slowest)
    by_elements = ~unknown & (tensors > 0)
    half_passes = total(np.where(is_repeated, 0, _half_passes(letters[rows], found, of)))
    share = np.minimum(2 * left / np.maximum(half_passes, 1), 1)
    # What a kernel takes that moves next to nothing, as measured; 0: none was.
    with np.errstate(invalid="ignore"):
        is_small = ~is_unknown & ~is_repeated & (each / speed < _NEXT_TO_NOTHING_NS)
    fixed_ns = float(np.median(dur[is_small])) if is_small.any() else 0.0
    fused_ns = np.select(
        [left == 0, by_bytes, by_elements],
        [
            np.zeros(2 * forwards),
            time_once_fused(whole_ns, kernels - 1, now, kept, slowest, fixed_ns),
            whole_ns * (kept / np.maximum(now, 1)),
        ],
        np.maximum(longest, whole_ns * share),
    )
    fused_ns = np.ceil(np.minimum(fused_ns, whole_ns)).astype(np.int64)
    basis = np.select([left == 0, by_bytes], [GONE, BYTES], PASSES)

    new_ns = work["dur_ns"].to_numpy().copy()
    new_ns[rows] = np.ceil(dur * (fused_ns / np.maximum(whole_ns, 1))[of]).astype(np.int64)
    goes = np.zeros(len(work), np.bool_)
    order = np.lexsort((rows, -dur, of))
    is_first = np.append(True, of[order][1:] != of[order][:-1])[: len(order)]
    goes[rows] = True
    goes[rows[order[is_first & (left[of[order]] > 0)]]] = False
    pattern = np.full(len(work), -1, np.int64)
    pattern[rows] = found.pattern_of[origin]
    are_there = np.flatnonzero(kernels)
    renumbered = np.full(2 * forwards + 1, -1, np.int64)
    renumbered[are_there] = np.arange(len(are_there))
    # Of what goes, the bytes count even where no tensor is the whole one.
    is_known = pl.Series((has_types | (~unknown & (left == 0)))[are_there])
    occurrences = pl.DataFrame(
        {
            "pattern": np.tile(found.pattern_of, 2)[are_there],
            "is_backward": are_there >= forwards,
            "kernels": kernels[are_there],
            "total_ns": whole_ns[are_there],
            "fused_ns": fused_ns[are_there],
            "bytes_now": now[are_there],
            "bytes_saved": (now - kept)[are_there],
            "basis": basis[are_there],
        }
    ).with_columns(pl.when(is_known).then(pl.col("bytes_now", "bytes_saved")))
    return Fusible(
        pl.DataFrame(
            {
                "pattern": pattern,
                "occurrence": renumbered[occurrence],
                "fused_ns": new_ns,
                "goes": goes,
                "is_product": is_product,
            }
        ),
        occurrences,
    )


def _half_passes(letters: npt.NDArray[np.uint8], found: _Occurrences, of: Int64Array) -> Int64Array:
    """Twice the passes over the whole tensor that each row makes at least, by its letter alone."""
    forwards = len(found.pattern_of)
    by_letter = np.full(256, 4, np.int64)  # an operator of another name reads and writes
    for letter, *_, passes in _LETTERS:
        by_letter[ord(letter)] = 2 * passes
    made = by_letter[letters]
    for number, pattern in enumerate(PATTERNS):
        mine = (of < forwards) & (found.pattern_of[of % max(1, forwards)] == number)
        made[mine & np.isin(letters, _codes(pattern.rows))] = 0
        made[mine & np.isin(letters, _codes(pattern.half))] //= 2
    return made


def time_once_fused(
    total_ns: Int64Array,
    gone: Int64Array,
    moved: Int64Array,
    kept: Int64Array,
    speed: npt.NDArray[np.float64],
    fixed_ns: float = 0.0,
) -> npt.NDArray[np.float64]:
    """How long kernels take that become one, by what they no longer move.

    Args:
        total_ns: How long they take now.
        gone: How many of them go.
        moved: Bytes that they move now.
        kept: Bytes that the one kernel moves.
        speed: Peak of the memory's bandwidth in bytes per ns.
        fixed_ns: What a kernel takes that moves next to nothing.
    """
    # Tensors in a cache take less than the memory needs: then the share of the bytes counts.
    share = kept / np.maximum(moved, 1)
    shorter = total_ns - (moved - kept) / speed - gone * fixed_ns
    left: npt.NDArray[np.float64] = np.maximum(shorter, total_ns * share)
    return left
