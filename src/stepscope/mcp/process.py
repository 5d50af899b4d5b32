"""Runs one verb in a process of its own, within limits of time and of text.

A process can be ended at any moment, keeps its memory to itself, and cannot write into the stream
over which server and client talk.
"""

from __future__ import annotations

import asyncio
import re
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.errors import StepscopeError
from stepscope.run.helper_processes import command_of, environment_of

_MOST_BYTES_OF_A_CHARACTER = 4
_MOST_REMARK_BYTES = 4_000
_PIECE_BYTES = 1 << 16
_LONGEST_CELL = 300
_LONG_CELL = re.compile(rf"(?:\\.|[^|\\]){{{_LONGEST_CELL + 1},}}")
"""A long cell of a line of a Markdown table; `\\|` does not end one."""


@dataclass(frozen=True)
class Limits:
    """The bounds of one answer."""

    characters: int = 20_000
    seconds: float = 300.0


class VerbError(StepscopeError):
    """A verb ended with an error, or did not end in time."""


async def run_verb(arguments: Sequence[str], limits: Limits) -> str:
    """What a verb prints, and below it what it remarks on standard error.

    Args:
        arguments: The words after `stepscope`.
        limits: The bounds. A longer answer is cut after a whole line, and says so.
    """
    environment = environment_of()
    environment.pop("COLUMNS", None)  # tables as wide as they need to be
    environment |= {"STEPSCOPE_STORES": "cache", "PYTHONUTF8": "1", "NO_COLOR": "1"}
    process = await asyncio.create_subprocess_exec(
        *command_of("stepscope", *arguments),
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        env=environment,
    )
    try:
        return await asyncio.wait_for(_answer(process, limits), limits.seconds)
    except asyncio.TimeoutError:
        raise VerbError(f"stopped after {limits.seconds:g} s: ask about less") from None
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _answer(process: Process, limits: Limits) -> str:
    assert process.stdout is not None
    assert process.stderr is not None
    remarks = asyncio.ensure_future(_beginning(process.stderr, _MOST_REMARK_BYTES))
    most_bytes = limits.characters * _MOST_BYTES_OF_A_CHARACTER
    said, is_cut = await _beginning(process.stdout, most_bytes, process)
    remarked = (await remarks)[0].strip()
    if await process.wait() != 0 and not is_cut:
        raise VerbError(remarked.removeprefix("stepscope: ") or f"exit code {process.returncode}")
    text = _with_short_cells(said.rstrip())
    if is_cut or len(text) > limits.characters:
        kept = text[: limits.characters]
        text = (
            f"{kept[: kept.rfind(chr(10))] if chr(10) in kept else kept}\n\n"
            f"(Cut after {limits.characters:,} characters: ask for fewer rows, one table, or fewer"
            " columns.)"
        )
    return f"{text}\n\n{remarked}" if remarked and not is_cut else text


def _with_short_cells(text: str) -> str:
    """The text with the long cells of its tables cut: a list of kernels' names can be its most."""
    lines = text.split("\n")
    short = [_LONG_CELL.sub(_cut, line) if line.startswith("| ") else line for line in lines]
    note = f"\n\n(Cells are cut after {_LONGEST_CELL} characters.)" if short != lines else ""
    return "\n".join(short) + note


def _cut(cell: re.Match[str]) -> str:
    kept = cell[0][:_LONGEST_CELL].rstrip("\\")  # which may begin an escape
    return f"{kept}… "


async def _beginning(
    stream: asyncio.StreamReader, most_bytes: int, ended_when_cut: Process | None = None
) -> tuple[str, bool]:
    """The beginning of a stream, which is read to its end, as text, and whether there is more."""
    kept = bytearray()
    is_cut = False
    while piece := await stream.read(_PIECE_BYTES):
        is_cut = is_cut or len(kept) + len(piece) > most_bytes
        kept += piece[: most_bytes - len(kept)]
        if is_cut and ended_when_cut is not None and ended_when_cut.returncode is None:
            ended_when_cut.kill()
            ended_when_cut = None
    return kept.decode("utf-8", "replace"), is_cut
