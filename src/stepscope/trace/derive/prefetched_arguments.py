"""Arguments of events that derivation and most analyses need, read in one pass over a store.

To read the arguments of some events, a store decompresses those of all, which takes longer than any
other part of derivation. So the arguments that derivation needs are read together with those that
nearly all analyses need next. `Trace.prefetched_arguments` holds them until those have run.

What they say of operands is most of each text, and repeats: calls of one operator on the same
shapes differ in what stands before it, such as identifiers, and in a number at the end
(`"Ev Idx": 5368}`). So each text is held in three parts, of which the middle one is a number of a
distinct text.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.classify import COLLECTIVE_NAME

SEQUENCE_NUMBER = 'equence number"'
"""Occurs in the arguments of operators numbered by autograd, in every version of the format."""

_FORWARD_THREAD = 'wd thread id"|fwd_thread_id"'
_OPERANDS = '"Input |"Concrete Inputs"'
_ALWAYS = f"{COLLECTIVE_NAME}|{SEQUENCE_NUMBER}|{_FORWARD_THREAD}"
_AT_THE_END = "0123456789 }\n\r\t"
_ALL = 2**62
"""More bytes than any text has."""


def text_parts(text: pl.Expr) -> list[pl.Expr]:
    """Expressions for `head`, `operands` and `tail` of arguments, which together are the text.

    `operands` begins with the first of them, and ends before a number at the end of the text. It is
    null, as is `tail`, where the text says nothing of operands.
    """
    start = text.str.find(_OPERANDS)  # in bytes
    said = text.cast(pl.Binary).bin.slice(start)
    operands = said.cast(pl.String).str.strip_chars_end(_AT_THE_END)
    # Polars finds what these have in common, and computes it once.
    return [
        _copied(text.cast(pl.Binary).bin.slice(0, start.fill_null(_ALL))).alias("head"),
        operands.cast(pl.Categorical).alias("operands"),
        _copied(said.bin.slice(operands.str.len_bytes())).alias("tail"),
    ]


def _copied(text: pl.Expr) -> pl.Expr:
    """Copies of parts of texts, which would keep all that they are parts of in memory."""
    return pl.concat_str(text.cast(pl.String), pl.lit(""))


def _whole_text() -> pl.Expr:
    rest = (pl.col(name).cast(pl.String).fill_null("") for name in ("operands", "tail"))
    return pl.concat_str("head", *rest)


@dataclass(frozen=True, eq=False)
class PrefetchedArguments:
    """The arguments of some events.

    These are all arguments that name a collective, a sequence number or a forward thread, and, of
    chosen operators, those with the shapes, types or values of operands.

    Attributes:
        rows: event, and the arguments (JSON text) as `text_parts` divides them, in the order of
            the events. A name, number or thread is always in `head`, which is the whole text where
            one stands after the operands, as in files until 2022.
        operators: For each event of the trace, whether it is an operator whose operands are here.
        are_divided: Whether no `head` has operands.
    """

    rows: pl.DataFrame
    operators: BoolArray
    are_divided: bool

    def has_operands_of(self, events: pl.Series) -> bool:
        """Whether the operands of all these events are here, as far as they were recorded."""
        return bool(self.operators[events.to_numpy()].all())

    def texts(self, events: pl.Series, *, operands: bool = True) -> pl.Series:
        """The arguments of events, in their order; null for those that are not here.

        Args:
            operands: Whether what is said of operands is wanted; else, it may be missing.
        """
        rows = self._rows_of(events, "head" if not operands else pl.all())
        return (rows.select(_whole_text()) if operands else rows)["head"].alias("args")

    def operands(self, events: pl.Series) -> pl.Series:
        """What the arguments of events say of operands, as in `text_parts`; null for nothing."""
        if self.are_divided:
            return self._rows_of(events, "operands")["operands"]
        rows = self._rows_of(events, "head", "operands")
        return rows.select(pl.coalesce("operands", text_parts(pl.col("head"))[1]))["operands"]

    def _rows_of(self, events: pl.Series, *columns: str | pl.Expr) -> pl.DataFrame:
        """Columns of the rows of events; null for those that are not here."""
        known: Int64Array = self.rows["event"].to_numpy()
        rows = self.rows.select(*columns)
        asked = events.to_numpy().astype(np.int64, copy=False)
        if not len(known):
            return rows.clear(len(asked))
        place = np.minimum(np.searchsorted(known, asked), len(known) - 1)
        row = pl.Series(place)
        is_known = pl.Series(known[place] == asked)
        asked_rows = pl.select(pl.when(is_known).then(row)).to_series()
        return rows.select(pl.all().gather(asked_rows))


def needed_args() -> pl.Expr:
    """Selects the rows of `args` that `derive` needs; the others do not change its result."""
    return pl.col("args").str.contains(_ALWAYS)


def prefetch_arguments(args: pl.LazyFrame, operators: BoolArray) -> PrefetchedArguments:
    """Reads `PrefetchedArguments`.

    Args:
        args: The table, row for row alongside `events`.
        operators: For each event whether its operands are wanted.
    """
    wanted = pl.col("event").is_in(pl.Series(np.flatnonzero(operators)).implode())
    text = pl.col("args")
    # Any of the words first: only texts that have one of them are searched twice.
    rows = (
        args.filter(text.str.contains(f"{_ALWAYS}|{_OPERANDS}"))
        .filter(needed_args() | wanted)
        .select("event", *text_parts(text))
        .collect(engine="streaming")
    )
    rows = rows if rows["event"].is_sorted() else rows.sort("event")
    kinds = rows["operands"].drop_nulls().unique()
    needed = kinds.filter(kinds.cast(pl.String).str.contains(_ALWAYS))
    if needed.is_empty():
        return PrefetchedArguments(rows, operators, are_divided=True)
    is_needed = pl.col("operands").is_in(needed.implode()).fill_null(value=False)
    undivided = (pl.when(~is_needed).then(name) for name in ("operands", "tail"))
    head = pl.when(is_needed).then(_whole_text()).otherwise("head").alias("head")
    rows = rows.select("event", head, *undivided)
    return PrefetchedArguments(rows, operators, are_divided=False)
