"""What operators were called with: shapes, types, strides and values, out of their arguments.

Kineto writes `Input Dims`, `Input type`, `Input Strides` and `Concrete Inputs` beside each other in
an operator's arguments. They are cut out of the JSON text as text, for many operators at once, and
only distinct ones are parsed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import polars as pl

from stepscope.trace.model import Trace

ITEM_BYTES: dict[str, int] = {
    "double": 8,
    "float": 4,
    "float32": 4,
    "float64": 8,
    "half": 2,
    "float16": 2,
    "bfloat16": 2,
    "int": 4,
    "int32": 4,
    "long": 8,
    "long int": 8,
    "int64": 8,
    "short": 2,
    "short int": 2,
    "int16": 2,
    "char": 1,
    "signed char": 1,
    "unsigned char": 1,
    "byte": 1,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "complex<float>": 8,
    "complex<double>": 16,
    "complexfloat": 8,
    "complexdouble": 16,
    "complexhalf": 4,
}
"""Size of an element by the names of its type, in lower case, without `c10::`."""

_TEXTS_AT_ONCE = 20_000
_OPERANDS = '"Input |"Concrete Inputs"'
_AT_THE_END = "0123456789 }\n\r\t"
_LARGEST = 2**63 - 1
_FEW = 10_000  # texts; of more, the streaming engine looks into several at the same time

_DIMS = r'"Input [Dd]ims"\s*:\s*(\[[^"}]*)'
_STRIDES = r'"Input [Ss]trides"\s*:\s*(\[[^"}]*)'
_TYPES = r'"Input [Tt]ypes?"\s*:\s*(\[[^\]]*\])'
_CONCRETE = r'"Concrete Inputs"\s*:\s*(\[(?:\s*"(?:[^"\\]|\\.)*"\s*,?)*\s*\])'


def element_bytes(type_name: str) -> int | None:
    """Size of an element of a type, as the recorder names it; None: not known."""
    return ITEM_BYTES.get(plain_type(type_name))


def plain_type(type_name: str) -> str:
    """A type's name in lower case without its namespace: "c10::BFloat16" is "bfloat16"."""
    return type_name.removeprefix("c10::").strip().lower()


def operand_columns(args: pl.Expr, *, concrete: bool = False) -> list[pl.Expr]:
    """Expressions for `dims`, `types` and, where wanted, `concrete` and `strides`, as recorded."""
    patterns = {"dims": _DIMS, "types": _TYPES}
    if concrete:
        patterns |= {"concrete": _CONCRETE, "strides": _STRIDES}
    return [args.str.extract(pattern).alias(name) for name, pattern in patterns.items()]


def whole_number(key: str) -> pl.Expr:
    """A whole number out of the column `args`; null where there is none that fits into 64 bits."""
    text = pl.col("args").str.extract(rf'"{key}"\s*:\s*"?(-?\d{{1,19}})(?:[^\d.eE]|$)')
    return text.cast(pl.Int64, strict=False)


def numbers_in(text: str | None) -> list[tuple[str, float]]:
    """The keys and values of JSON text that are numbers."""
    try:
        values = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        return []
    return [
        (key, float(value))
        for key, value in (values.items() if isinstance(values, dict) else ())
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    ]


def compact_operands(table: pl.DataFrame) -> pl.DataFrame:
    """The same table with shapes, types and strides without blanks."""
    texts = [name for name in ("dims", "types", "strides") if name in table.columns]
    return table.with_columns(_without_blanks(pl.col(name)) for name in texts)


def _without_blanks(text: pl.Expr) -> pl.Expr:
    # Texts repeat: blanks are taken out of the distinct ones alone.
    distinct = text.drop_nulls().unique(maintain_order=True)
    compact = (
        distinct.str.replace_all(r"([\[,])\s+", "$1")
        .str.replace_all(r"\s+(\])", "$1")
        .str.strip_chars_end(", \n\r\t")
    )
    return text.replace(distinct, compact)


def argument_texts(trace: Trace, events: pl.Series) -> pl.Series:
    """The arguments of some events as JSON text, in the order given; null for null."""
    return from_arguments(trace, events.cast(pl.Int64), [pl.col("args")])["args"]


def operand_texts(trace: Trace, events: pl.Series) -> pl.Series:
    """The part of arguments that says what operators were called with; null if nothing does.

    It begins with the first of them and ends before a number at the end (`"Ev Idx": 5368}`): it is
    without identifiers, so that it repeats, and is held once.

    Returns:
        A categorical column, in the order given.
    """
    texts = argument_texts(trace, events)
    said = pl.col("args").cast(pl.Binary).bin.slice(pl.col("args").str.find(_OPERANDS))
    operands = said.cast(pl.String).str.strip_chars_end(_AT_THE_END).cast(pl.Categorical)
    # A part at a time, as copies of all the texts would take much memory.
    parts = [
        texts.slice(first, _TEXTS_AT_ONCE).to_frame("args").select(operands=operands)
        for first in range(0, max(1, len(texts)), _TEXTS_AT_ONCE)
    ]
    return pl.concat(parts, rechunk=True).to_series()


def from_arguments(trace: Trace, events: pl.Series, columns: list[pl.Expr]) -> pl.DataFrame:
    """`event` and columns made of the column `args`, for some events, in the order given."""
    if trace.store is None and not events.has_nulls():
        # In memory the number of an event is its row; a store would have to read all the texts.
        rows = trace.args.select("event", "args").collect(engine=trace.engine)[events]
        if len(rows) < _FEW:
            return rows.select("event", *columns)
        return rows.lazy().select("event", *columns).collect()
    wanted = events.drop_nulls().unique()
    is_wanted = pl.col("event").is_in(wanted.implode())
    # Where no event is asked for, nothing is read; else all texts of the store are unpacked.
    args = trace.args.filter(is_wanted) if len(wanted) else trace.args.head(0)
    found = args.select("event", *columns).collect()
    if found["event"].equals(events, check_dtypes=True):  # asked for in order, each once
        return found
    return events.to_frame("event").join(found, on="event", how="left", maintain_order="left")


def operands(trace: Trace, events: pl.Series, *, concrete: bool = False) -> pl.DataFrame:
    """What some operators were called with.

    Args:
        concrete: Whether values (`Concrete Inputs`) and strides are wanted too.

    Returns:
        One row per event, in the order given: `event`, `dims`, `types` and, where wanted,
        `concrete` and `strides`, as JSON text without blanks; null where not recorded.
    """
    columns = operand_columns(pl.col("args"), concrete=concrete)
    return compact_operands(from_arguments(trace, events, columns))


def of_each_way(
    calls: pl.DataFrame,
    function: Callable[..., Sequence[Any] | None],
    schema: dict[str, type[pl.DataType]],
) -> pl.DataFrame:
    """A function of the columns of each row, computed once for each of the few ways of calling.

    Returns:
        The columns of the schema, row for row; null where the function returns None, or a number
        that no 64 bits hold: no tensor has such a shape.
    """
    ways = calls.unique(maintain_order=True)
    found = [function(*way) for way in ways.iter_rows()]
    found = [None if one is None or any(map(_is_too_large, one)) else one for one in found]
    columns = [
        pl.Series(name, [None if one is None else one[place] for one in found], kind)
        for place, (name, kind) in enumerate(schema.items())
    ]
    if all(column.null_count() == len(column) for column in columns):
        return pl.DataFrame(schema=schema).clear(len(calls))  # as where no shapes were recorded
    known, keys = ways.hstack(columns), calls.columns
    joined = calls.join(known, on=keys, how="left", nulls_equal=True, maintain_order="left")
    return joined.select(schema.keys())


def _is_too_large(value: object) -> bool:
    return isinstance(value, int) and abs(value) > _LARGEST


@dataclass(frozen=True)
class Call:
    """One distinct way to call an operator.

    Attributes:
        dims: Shape of each operand; of a list of tensors a list of shapes; scalars are [].
        types: Type of each operand, as recorded.
        values: Scalars and lists of scalars as text, tensors as "".
    """

    name: str
    dims: tuple[Any, ...]
    types: tuple[str, ...]
    values: tuple[str, ...]

    def shape(self, index: int) -> tuple[int, ...] | None:
        """Shape of one operand; None where it is no tensor, or not recorded."""
        if index >= len(self.dims):
            return None
        shape = self.dims[index]
        if not isinstance(shape, list) or not shape:
            return None
        if not all(isinstance(size, int) and size >= 0 for size in shape):
            return None
        return tuple(shape)

    def type(self, index: int) -> str:
        """Plain type of one operand; "" where not recorded."""
        return plain_type(self.types[index]) if index < len(self.types) else ""

    def integers(self, index: int) -> tuple[int, ...] | None:
        """A scalar list such as "[1, 1]", or one scalar, as integers; None: not recorded."""
        parsed = self._value(index)
        items = parsed if isinstance(parsed, list) else [parsed]
        if not all(isinstance(item, int) and not isinstance(item, bool) for item in items):
            return None
        return tuple(items)

    def flag(self, index: int) -> bool | None:
        """A Boolean; None: not recorded."""
        parsed = self._value(index)
        if isinstance(parsed, bool):
            return parsed
        return bool(parsed) if isinstance(parsed, int) else None

    def _value(self, index: int) -> Any:
        if index >= len(self.values) or not self.values[index]:
            return None
        text = self.values[index].replace("True", "true").replace("False", "false")
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError:
            return None


def tensor_shapes(dims: str | None) -> list[tuple[int, ...]]:
    """Shapes of the tensors among some operands, without scalars and lists of tensors."""
    return [
        tuple(shape)
        for shape in _list(dims) or []
        if isinstance(shape, list) and shape and all(isinstance(side, int) for side in shape)
    ]


def parse_call(name: str, dims: str | None, types: str | None, concrete: str | None) -> Call | None:
    """A call from the texts that `operands` gives; None where there are no shapes to be read."""
    shapes = _list(dims)
    if shapes is None:
        return None
    type_names = tuple(item if isinstance(item, str) else "" for item in _list(types) or [])
    values = tuple(item if isinstance(item, str) else "" for item in _list(concrete) or [])
    return Call(name, tuple(shapes), type_names, values)


def _list(text: str | None) -> list[Any] | None:
    if text is None:
        return None
    try:
        parsed = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return parsed if isinstance(parsed, list) else None
