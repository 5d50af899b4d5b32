"""Arguments of events that derivation and most analyses need, read in one pass over a store.

To read the arguments of some events, a store decompresses those of all, which takes longer than any
other part of derivation. So the arguments that derivation needs are read together with those that
nearly all analyses need next. `Trace.prefetched_arguments` holds them until those have run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.arrays.search import places
from stepscope.trace.classify import COLLECTIVE_NAME

SEQUENCE_NUMBER = 'equence number"'
"""Occurs in the arguments of operators numbered by autograd, in every version of the format."""

_FORWARD_THREAD = 'wd thread id"|fwd_thread_id"'
_OPERANDS = '"Input |"Concrete Inputs"'
_ALWAYS = f"{COLLECTIVE_NAME}|{SEQUENCE_NUMBER}|{_FORWARD_THREAD}"


@dataclass(frozen=True, eq=False)
class PrefetchedArguments:
    """The arguments of some events.

    These are all arguments that name a collective, a sequence number or a forward thread, and, of
    chosen operators, those with the shapes, types or values of operands.

    Attributes:
        rows: event and args (JSON text), in the order of the events.
        operators: For each event of the trace, whether it is an operator whose operands are here.
    """

    rows: pl.DataFrame
    operators: BoolArray

    def has_operands_of(self, events: pl.Series) -> bool:
        """Whether the operands of all these events are here, as far as they were recorded."""
        return bool(self.operators[events.to_numpy()].all())

    def texts(self, events: pl.Series) -> pl.Series:
        """The arguments of events, in their order; null for those that are not here.

        Args:
            events: Numbers of events, without nulls.
        """
        known: Int64Array = self.rows["event"].to_numpy()
        asked = events.to_numpy().astype(np.int64, copy=False)
        if not len(known):
            return pl.Series("args", [None], pl.String).new_from_index(0, len(asked))
        place = np.minimum(places(known, asked), len(known) - 1)
        row = pl.Series(place)
        is_known = pl.Series(known[place] == asked)
        asked_rows = pl.select(pl.when(is_known).then(row)).to_series()
        return self.rows["args"].gather(asked_rows)


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
        # Copies the texts: filtered ones keep all that they were filtered from in memory.
        .select("event", pl.concat_str(text, pl.lit("")).alias("args"))
        .collect(engine="streaming")
    )
    return PrefetchedArguments(rows if rows["event"].is_sorted() else rows.sort("event"), operators)
