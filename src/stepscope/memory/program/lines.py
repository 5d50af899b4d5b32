"""The line of the program that each stack stands for.

A recorded stack begins in the allocator and ends in the launcher. What a reader wants to see is the
innermost frame of their own program; where there is none, the innermost Python frame; where there
is none of these either, which is so in the backward pass, the node of the graph that runs; and else
the innermost frame that is not the recorder's own. Code that torch.compile generates is nobody's
program: where torch noted the line of the model that it comes from, that line stands for it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import orjson
import polars as pl

from stepscope.memory.schema import Snapshot, Types


def file_name() -> pl.Expr:
    """The file of each frame, with slashes on every system; empty where none was recorded."""
    return pl.col("filename").fill_null("").str.replace_all("\\", "/", literal=True)


def first_match(snapshot: Snapshot, patterns: Sequence[str]) -> pl.Series:
    """Of each stack the first pattern that one of its frames matches; `len(patterns)` for none.

    The patterns are searched for in "file:function".
    """
    texts = snapshot.frames.select(
        pl.concat_str(file_name(), pl.lit(":"), pl.col("name").fill_null("")).alias("text")
    )["text"]
    nothing = len(patterns)
    # Frames number in the thousands, and each is looked at once, however many stacks have it.
    best = np.full(len(texts), nothing, np.int64)
    searches = [re.compile(pattern).search for pattern in patterns]
    for number, text in enumerate(texts.to_list()):
        for place, search in enumerate(searches):
            if search(text):
                best[number] = place
                break
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


LINES: Types = {
    "stack": pl.UInt32,  # -> stacks
    "frame": pl.UInt32,  # -> frames; null: the stack has no frame
    "line": pl.String,  # "train.py:12 main", the file by the last two parts of its path
    "is_own": pl.Boolean,  # it is of the program, and of no installed package
}
"""One row per stack."""

NO_STACK = "no stack recorded"

_INSTALLED = (
    r"(?i)site-packages/|dist-packages/|/lib/python3|python3?\d*/lib/|^<frozen|^<string>|"
    r"(?:^|/)(?:torch|stepscope)/"
)
_GENERATED = r"torchinductor_|/[a-z0-9]{2}/c[a-z2-7]{40,}\.py$|^<eval_with_key>|\.fx_graph"
"""Files that torch.compile and torch.fx write."""
_PYTHON = r"\.py$|^<ipython|^/tmp/ipykernel"
_NODE = r"(\w*Backward\d*|AccumulateGrad)(?:::apply|::operator\(\)|$)"
"""A node of autograd's graph."""
_NOISE_NAMES = (
    r"unwind::|CapturedTraceback|gather_with_cpp|^_start$|^__libc_start|^PyEval_|^_?PyObject_|"
    r"^_?PyFunction_|^method_vectorcall|c10::cuda::|c10::StorageImpl|at::detail::|_?empty_generic|"
    r"c10::impl::|c10::Dispatcher|at::_ops::|[wW]orkspace|cuda::blas::|native::(?:empty|resize_)|"
    r"structured_\w+|at::empty|CUDACachingAllocator"
)
_NOISE_FILES = r"core/boxing|/Register|/Redispatch|pythonrun\.c|Modules/main\.c|Objects/|ceval"
_TRACED = re.compile(r'File "([^"]+)", line (\d+), in ([^\n]+)')


def lines_of(snapshot: Snapshot) -> pl.DataFrame:
    """The line of each stack, with the columns of `LINES`."""
    name = pl.col("name").fill_null("")
    texts = _model_lines(snapshot)
    frames = snapshot.frames.with_columns(
        filename=file_name(), is_traced=texts.is_not_null()
    ).select(
        "frame",
        rank=pl.when("is_traced")
        .then(0)
        .when(_is_python() & ~_is_installed())
        .then(0)
        .when(_is_python() & ~pl.col("filename").str.contains(_GENERATED))
        .then(1)
        .when(name.str.contains(_NODE))
        .then(2)
        .when(~name.str.contains(_NOISE_NAMES) & ~pl.col("filename").str.contains(_NOISE_FILES))
        .then(3)
        .otherwise(4)
        .cast(pl.UInt8),
        text=pl.coalesce(texts, line_text()),
        has_line=texts.is_not_null() | (pl.col("line").fill_null(0) > 0),
    )
    # Of each stack the frame of the best rank, and of those the innermost.
    best = (
        snapshot.stacks.filter(pl.col("frames").list.len() > 0)
        .explode("frames")
        .rename({"frames": "frame"})
        .with_row_index("place")
        .join(frames, on="frame", how="left", maintain_order="left")
        .with_columns(
            within=pl.when(pl.col("has_line").shift(1)).then(pl.col("text").shift(1)).over("stack")
        )
        .sort("stack", "rank", "place")
        .group_by("stack", maintain_order=True)
        .first()
    )
    # Of a Python function whose line is not known, what it called says more than its name alone.
    text = (
        pl.when((pl.col("rank") <= 1) & ~pl.col("has_line") & pl.col("within").is_not_null())
        .then(pl.concat_str("text", pl.lit(", in "), "within"))
        .otherwise("text")
    )
    return (
        snapshot.stacks.select("stack")
        .join(best.with_columns(line=text), on="stack", how="left", maintain_order="left")
        .with_columns(
            pl.col("line").fill_null(NO_STACK), is_own=(pl.col("rank") == 0).fill_null(value=False)
        )
        .select(pl.col(column).cast(kind) for column, kind in LINES.items())
    )


def _is_python() -> pl.Expr:
    return pl.col("filename").str.contains(_PYTHON)


def _is_installed() -> pl.Expr:
    file = pl.col("filename")
    return file.str.contains(_INSTALLED) | file.str.contains(_GENERATED)


def _model_lines(snapshot: Snapshot) -> pl.Series:
    """Of each frame of generated code the line of the model that torch.fx noted; else null."""
    return pl.Series([_model_line(more) for more in snapshot.frames["more"]], dtype=pl.String)


def _model_line(more: str | None) -> str | None:
    """The innermost line of the program in a trace of torch.fx."""
    if not more or "fx_original_trace" not in more:
        return None
    try:
        trace = orjson.loads(more).get("fx_original_trace")
    except (ValueError, AttributeError):
        return None
    places = _TRACED.findall(trace) if isinstance(trace, str) else []
    own = [one for one in places if not re.search(_INSTALLED, one[0].replace("\\", "/"))]
    for filename, line, function in reversed(own or places):
        parts = "/".join(filename.replace("\\", "/").split("/")[-2:])
        return f"{parts}:{line} {function.strip()}"
    return None


def line_text() -> pl.Expr:
    """How a frame is written: its file, line and function; of a node of autograd's graph its name.

    Of functions of C++ without their arguments.
    """
    known = pl.when(pl.col("filename") != "??").then(file_name()).fill_null("")
    parts = known.str.split("/").list.tail(2).list.join("/")
    place = (
        pl.when(pl.col("line").fill_null(0) > 0)
        .then(pl.concat_str(parts, pl.lit(":"), pl.col("line")))
        .otherwise(parts)
    )
    name = pl.col("name").fill_null("")
    whole = pl.concat_str(place, name, separator=" ").str.strip_chars()
    return pl.coalesce(
        pl.when(~known.str.contains(_PYTHON)).then(name.str.extract(_NODE, 1)), whole
    )
