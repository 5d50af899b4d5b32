"""Makes one file of a window, and compresses traces so that they can be read again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import IO

from isal import igzip

from stepscope.artifacts.job import blocks_with_names
from stepscope.run.figures import describe_error
from stepscope.run.files import replacing
from stepscope.run.manifest import ArtifactRecord


class ArtifactError(Exception):
    """An artifact is unexpectedly empty, or does not contain what was written to it."""


def make_file(kind: str, path: Path, fill: Callable[[Path], object]) -> ArtifactRecord:
    """Make one file; an error becomes the record's problem and leaves no file."""
    try:
        with replacing(path) as temporary:
            fill(temporary)
        return ArtifactRecord.of(kind, path, path.parent.parent)
    except Exception as error:  # noqa: BLE001 - one artifact must not affect the others
        relative = f"{path.parent.name}/{path.name}"
        return ArtifactRecord(kind, relative, problem=describe_error(error))


_BLOCK_BYTES = 4 << 20
_GZIP_LEVEL = 1  # isal's levels 0 to 3 differ little in size and much in time


def format_of(path: Path) -> str:
    """The format of a trace with this name."""
    return "json.gz" if path.suffix == ".gz" else "json"


def compress(source: Path, target: Path, trace_format: str, renames: dict[str, str]) -> int:
    """Write `source` to `target`, step ranges renamed; returns the bytes before compression."""
    total = 0
    with _opened(trace_format, target, "wb") as sink:
        for block in blocks_with_names(source, renames):
            sink.write(block)
            total += len(block)
    return total


def check_compressed(path: Path, trace_format: str, expected: int) -> None:
    """Read a file back to its end.

    Raises:
        ArtifactError: The number of bytes differs from what was written.
    """
    unpacked = 0
    with _opened(trace_format, path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            unpacked += len(block)
    if unpacked != expected:
        raise ArtifactError(f"the compressed trace has {unpacked} of {expected} bytes")


def _opened(trace_format: str, path: Path, mode: str) -> IO[bytes]:
    if trace_format == "json.gz":
        file: IO[bytes] = igzip.open(path, mode, compresslevel=_GZIP_LEVEL)
        return file
    return path.open(mode)
