"""Finds the dumps that paths stand for, and answers what hangs in a form that reporters know."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from stepscope.analysis.questions import Answer, Answers, Question
from stepscope.errors import UnreadableInputError
from stepscope.fleet.hangs.dump import Dump, rank_of_dump, read_dump
from stepscope.fleet.hangs.find_hang import Hang, find_hang
from stepscope.opening.discover import has_wildcard
from stepscope.opening.reader import open_run
from stepscope.run.figures import shortened_list
from stepscope.run.files import kind_of

HANGS = Question(
    "hangs",
    "which collective hangs, which ranks are missing in it, and which one began it",
    "stepscope.fleet.hangs.find_hang:find_hang",
    {
        "hanging": "What hangs",
        "mismatched": "Calls that differ",
        "ranks": "Ranks",
        "members": "Members of what hangs",
        "operations": "Operations, the last first",
    },
    over_ranks=True,
)
_HIDDEN_SUFFIXES = {".log", ".txt", ".md", ".csv", ".gz", ".zip", ".tmp", ".partial"}


def answer_hang(paths: Sequence[str], ranks: int | None = None, run: str | None = None) -> Answers:
    """Answers what hangs.

    Args:
        paths: Dumps, directories of dumps, and globs.
    """
    files = dump_files(paths)
    dumps, problems = _read(files)
    hang = find_hang(dumps, ranks)
    if run is not None:
        hang = with_steps(hang, run)
    hang = replace(hang, notes=(*hang.notes, *problems))
    shown = shortened_list([dump.path for dump in dumps])
    first = min((entry.created_ns for dump in dumps for entry in dump.entries), default=0)
    return Answers(HANGS, len(dumps), [Answer(shown, first, hang)])


def dump_files(paths: Sequence[str]) -> list[Path]:
    """The files that may be dumps, in order."""
    found: list[Path] = []
    for text in paths:
        path = Path(text).expanduser()
        if path.is_dir():
            found += sorted(one for one in path.iterdir() if _may_be_dump(one))
        elif path.is_file():
            found.append(path)
        elif has_wildcard(text):
            found += sorted(Path(one) for one in glob.glob(str(path)) if Path(one).is_file())  # noqa: PTH207
        else:
            if text == "-":
                raise UnreadableInputError(
                    "-: dumps are not read from standard input: save it to a file,"
                    " and give its name"
                )
            is_there = path.exists()
            what = f"{kind_of(path.stat().st_mode)}, not a file" if is_there else "no such file"
            raise UnreadableInputError(f"{path}: {what}{'' if is_there else ' or directory'}")
    if not found:
        raise UnreadableInputError(
            f"{', '.join(paths)}: no flight recorder dump found. Torch writes them as "
            "~/.cache/torch/comm_lib_trace_rank_N or /tmp/nccl_trace_rank_N, with "
            "TORCH_FR_BUFFER_SIZE (TORCH_NCCL_TRACE_BUFFER_SIZE) and TORCH_NCCL_DUMP_ON_TIMEOUT set"
        )
    return list(dict.fromkeys(found))


def _may_be_dump(path: Path) -> bool:
    is_named = not path.name.startswith(".") and path.suffix not in _HIDDEN_SUFFIXES
    return is_named and path.is_file() and rank_of_dump(path) is not None


def _read(files: Sequence[Path]) -> tuple[list[Dump], list[str]]:
    dumps, problems = [], []
    for path in files:
        try:
            dumps.append(read_dump(path))
        except UnreadableInputError as error:  # noqa: PERF203 - they are few
            problems.append(str(error))
    if not dumps:
        raise UnreadableInputError("; ".join(problems[:3]))
    return dumps, [f"left out: {problem}" for problem in problems]


def with_steps(hang: Hang, run: str) -> Hang:
    """Adds `last_step` and `last_step_end_ns` of each rank, from the job's step records."""
    rows = [
        {
            "rank": rank.rank,
            "last_step": last.step,
            "last_step_end_ns": last.start_ns + last.dur_ns,
        }
        for rank in open_run(run).ranks
        if (last := max(rank.steps, key=lambda one: one.start_ns, default=None)) is not None
    ]
    known = pl.DataFrame(
        rows, schema={"rank": pl.Int64, "last_step": pl.Int64, "last_step_end_ns": pl.Int64}
    )
    joined = hang.ranks.join(known, on="rank", how="left", maintain_order="left")
    return replace(hang, ranks=joined)
