"""Which stacks have a frame that a regular expression finds."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import polars as pl

from stepscope.memory.schema import Snapshot


def file_name() -> pl.Expr:
    """The file of each frame, with slashes on every system; empty where none was recorded."""
    return pl.col("filename").fill_null("").str.replace_all("\\", "/", literal=True)


def first_match(snapshot: Snapshot, patterns: Sequence[str]) -> pl.Series:
    """Of each stack the first pattern that one of its frames matches; `len(patterns)` for none.

    Args:
        snapshot: With the stacks.
        patterns: Regular expressions, searched for in "file:function".
    """
    texts = snapshot.frames.select(
        pl.concat_str(file_name(), pl.lit(":"), pl.col("name").fill_null("")).alias("text")
    )["text"]
    nothing = len(patterns)
    # Frames number in the thousands, and each is looked at once, however many stacks have it.
    best = np.full(len(texts), nothing, np.int64)
    for number, text in enumerate(texts.to_list()):
        best[number] = next(
            (place for place, pattern in enumerate(patterns) if re.search(pattern, text)), nothing
        )
    flat = snapshot.stacks.filter(pl.col("frames").list.len() > 0).explode("frames")
    ruled = flat.select("stack", rule=pl.Series(best).gather(flat["frames"]))
    first = ruled.group_by("stack").agg(pl.col("rule").min())
    stacks = snapshot.stacks.select("stack").join(
        first, on="stack", how="left", maintain_order="left"
    )
    return stacks["rule"].fill_null(nothing)


def stacks_with(snapshot: Snapshot, pattern: str) -> pl.Series:
    """Whether each stack has a frame in which a regular expression finds "file:function"."""
    return first_match(snapshot, [pattern]) == 0
