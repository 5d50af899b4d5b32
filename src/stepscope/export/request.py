"""What is exported, to where, and what came of it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from stepscope.errors import UsageError
from stepscope.run.files import replacing
from stepscope.terminal.working import StatusLine
from stepscope.trace.paths import PathTarget, TraceRef

Write = Callable[[bytes], object]


@dataclass(frozen=True)
class Request:
    """What to export.

    Attributes:
        sources: The chosen traces, the last window of each chosen rank.
        steps: Only these steps; None: everything.
        with_findings: Whether to diagnose the run, and mark the findings.
    """

    target: PathTarget
    sources: tuple[TraceRef, ...]
    steps: tuple[int, ...] | None
    destination: Path
    with_findings: bool = True

    def rank_of(self, source: TraceRef) -> int | None:
        """The rank of a trace, where a note must say which one it is about; None: it is alone."""
        return source.rank if len(self.sources) > 1 else None


@dataclass(frozen=True)
class Exported:
    """What was written."""

    files: tuple[Path, ...]
    summary: str
    notes: tuple[str, ...] = field(default=())


def request(
    target: PathTarget,
    destination: Path,
    steps: tuple[int, ...] | None = None,
    ranks: tuple[int, ...] | None = None,
    *,
    with_findings: bool = True,
) -> Request:
    """Choose the traces of an export."""
    known = {rank.rank: rank for rank in target.ranks}
    missing = sorted(set(ranks or ()) - set(known))
    if missing:
        have = ", ".join(map(str, sorted(known)[:20]))
        raise UsageError(f"{target.path}: has no rank {missing[0]}; it has {have}")
    sources = []
    for number in sorted(known) if ranks is None else sorted(set(ranks)):
        last = known[number].last_with(steps)
        if last is not None:
            sources.append(last)
    if not sources:
        target.one_trace()  # says why there is none
    return Request(target, tuple(sources), steps, destination, with_findings)


@contextmanager
def file_writer(path: Path, final: Path | None = None) -> Iterator[Write]:
    """A function that writes bytes to a file, gzipped if its name ends so.

    The file appears when everything is written.

    Args:
        final: What messages call it; None: the same.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            if path.suffix == ".gz":
                from isal import igzip

                with igzip.open(temporary, "wb") as packed:
                    yield packed.write
            else:
                with temporary.open("wb") as file:
                    yield file.write
    except OSError as error:
        raise _refusal(final or path, error) from error


def _refusal(path: Path, error: OSError) -> UsageError:
    return UsageError(f"{path}: cannot be written: {error.strerror or error}")


class Folder:
    """Writes files of a folder, which appear in it together; see `folder_writer`.

    Args:
        staging: Where the files are until all of them are written.

    Attributes:
        files: Where they will be, in order.
    """

    def __init__(self, destination: Path, staging: Path) -> None:
        self.files: list[Path] = []
        self._destination = destination
        self._staging = staging

    @contextmanager
    def file(self, *parts: str) -> Iterator[Write]:
        """A function that writes bytes to one more file; see `file_writer`."""
        final = self._destination.joinpath(*parts)
        with file_writer(self._staging.joinpath(*parts), final) as write:
            yield write
        self.files.append(final)

    def put_in_place(self) -> None:
        """Move the files to where they belong."""
        try:
            for final in self.files:
                final.parent.mkdir(parents=True, exist_ok=True)
                (self._staging / final.relative_to(self._destination)).replace(final)
        except OSError as error:
            raise _refusal(final, error) from error


@contextmanager
def folder_writer(destination: Path) -> Iterator[Folder]:
    """Write the files of a folder: they appear when all are written, and none if one cannot be.

    What the folder already holds stays until then, and what the files do not replace stays for
    good.
    """
    missing = [one for one in (destination, *destination.parents) if not one.exists()]
    staging = destination / f".stepscope-export.{os.getpid()}.{time.monotonic_ns()}.tmp"
    try:
        try:
            staging.mkdir(parents=True)
        except OSError as error:
            raise _refusal(destination, error) from error
        folder = Folder(destination, staging)
        yield folder
        folder.put_in_place()
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        for one in missing:  # of those made here, the ones that nothing was put into
            with suppress(OSError):
                one.rmdir()


def parts_of(rows: int, at_once: int) -> Iterator[slice]:
    """Consecutive slices that cover some rows, with progress on a terminal.

    Args:
        at_once: Rows of each slice; the last may reach beyond the end.
    """
    status = StatusLine()
    try:
        for first in range(0, rows, at_once):
            status.update(f"Writing events · {first / rows:.0%}")
            yield slice(first, first + at_once)
    finally:
        status.close()
