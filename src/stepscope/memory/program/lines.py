"""The line of the program that each stack stands for.

A recorded stack begins in the allocator and ends in the launcher. What a reader wants to see is the
innermost frame of their own program; where there is none, the innermost Python frame; and where
there is none of these either, which is so in the backward pass, the innermost frame that is not the
recorder's own.
"""

from __future__ import annotations

import polars as pl

from stepscope.memory.model import Snapshot
from stepscope.memory.schema import Types

LINES: Types = {
    "stack": pl.UInt32,  # -> stacks
    "frame": pl.UInt32,  # -> frames; null: the stack has no frame
    "line": pl.String,  # "train.py:12 main", the file by the last two parts of its path
    "is_own": pl.Boolean,  # it is of the program, and of no installed package
}
"""One row per stack."""

NO_STACK = "no stack recorded"

_INSTALLED = r"site-packages/|dist-packages/|/lib/python3|^<frozen|^<string>|(?:^|/)torch/"
_PYTHON = r"\.py$|^<ipython|^/tmp/ipykernel"
_NOISE_NAMES = (
    r"unwind::|CapturedTraceback|gather_with_cpp|^_start$|^__libc_start|^PyEval_|^_?PyObject_|"
    r"^_?PyFunction_|^method_vectorcall|c10::cuda::|c10::StorageImpl|at::detail::empty|"
    r"c10::impl::BoxedKernelWrapper|c10::Dispatcher|at::_ops::"
)
_NOISE_FILES = r"core/boxing|/Register|/Redispatch|pythonrun\.c|Modules/main\.c|Objects/|ceval"


def lines_of(snapshot: Snapshot) -> pl.DataFrame:
    """The line of each stack, with the columns of `LINES`."""
    filename, name = pl.col("filename").fill_null(""), pl.col("name").fill_null("")
    is_python = filename.str.contains(_PYTHON)
    frames = snapshot.frames.select(
        "frame",
        rank=pl.when(is_python & ~filename.str.contains(_INSTALLED))
        .then(0)
        .when(is_python)
        .then(1)
        .when(~name.str.contains(_NOISE_NAMES) & ~filename.str.contains(_NOISE_FILES))
        .then(2)
        .otherwise(3)
        .cast(pl.UInt8),
    )
    # Of each stack the frame of the best rank, and of those the innermost.
    best = (
        snapshot.stacks.filter(pl.col("frames").list.len() > 0)
        .explode("frames")
        .rename({"frames": "frame"})
        .with_row_index("place")
        .join(frames, on="frame", how="left", maintain_order="left")
        .sort("stack", "rank", "place")
        .group_by("stack", maintain_order=True)
        .first()
    )
    texts = snapshot.frames.select("frame", line=line_text())
    return (
        snapshot.stacks.select("stack")
        .join(best, on="stack", how="left", maintain_order="left")
        .join(texts, on="frame", how="left", maintain_order="left")
        .with_columns(
            pl.col("line").fill_null(NO_STACK), is_own=(pl.col("rank") == 0).fill_null(value=False)
        )
        .select(pl.col(column).cast(kind) for column, kind in LINES.items())
    )


def line_text() -> pl.Expr:
    """How a frame is written: its file, line and function."""
    known = pl.when(pl.col("filename") != "??").then("filename").fill_null("")
    parts = known.str.split("/").list.tail(2).list.join("/")
    place = (
        pl.when(pl.col("line").fill_null(0) > 0)
        .then(pl.concat_str(parts, pl.lit(":"), pl.col("line")))
        .otherwise(parts)
    )
    return pl.concat_str(place, pl.col("name").fill_null(""), separator=" ").str.strip_chars()
