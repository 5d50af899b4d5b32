"""The files that a finished window leaves behind, each written under a temporary name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isal import igzip

from stepscope.capture.config import CaptureConfig
from stepscope.run.files import digest_of, replacing
from stepscope.run.layout import KEY_AVERAGES_FILE, STACKS_FILE, TRACE_FILE
from stepscope.run.manifest import ArtifactRecord

_BLOCK_BYTES = 4 << 20
_GZIP_LEVEL = 1  # isal's levels 0 to 3 differ little in size; speed is what the loop pays with
_WORK = (b'"cat": "cpu_op"', b'"cat": "kernel"')


class ArtifactError(Exception):
    """An export of torch that did not give what it should have; it rarely says so itself."""


@dataclass(frozen=True)
class RawTrace:
    """The trace as torch wrote it, before compression.

    Attributes:
        path: The JSON file.
        bytes: Its size.
        has_work: Whether there is any operator or kernel in it.
    """

    path: Path
    bytes: int
    has_work: bool


def export_raw(profiler: Any, path: Path) -> RawTrace:
    """Let torch write the trace as plain JSON to `path`, and look whether it is whole.

    torch reports a missing folder or a full disk on standard error only, so the file is checked:
    it must exist, begin like an object and end like one.

    Raises:
        ArtifactError: The file is missing or cut off.
    """
    profiler.export_chrome_trace(str(path))
    try:
        size = path.stat().st_size
    except OSError:
        raise ArtifactError("torch wrote no trace file (full disk or missing folder?)") from None
    with path.open("rb") as file:
        head = file.read(64).lstrip()
        file.seek(max(0, size - 64))
        tail = file.read().rstrip()
    if not head.startswith(b"{") or not tail.endswith(b"}"):
        raise ArtifactError(f"torch's trace file is cut off after {size} bytes (full disk?)")
    has_work = any(any(word in block for word in _WORK) for block in _overlapping_blocks(path))
    return RawTrace(path, size, has_work)


def save_trace(raw: RawTrace, directory: Path) -> ArtifactRecord:
    """Compress the trace into the window's folder."""

    def fill(temporary: Path) -> None:
        with (
            raw.path.open("rb") as source,
            igzip.open(temporary, "wb", compresslevel=_GZIP_LEVEL) as target,
        ):
            while block := source.read(_BLOCK_BYTES):
                target.write(block)

    def check(temporary: Path) -> None:
        unpacked = 0
        with igzip.open(temporary, "rb") as file:
            while block := file.read(_BLOCK_BYTES):
                unpacked += len(block)
        if unpacked != raw.bytes:
            raise ArtifactError(f"the compressed trace holds {unpacked} of {raw.bytes} bytes")

    return _save("trace", directory / TRACE_FILE, fill, check)


def save_key_averages(profiler: Any, config: CaptureConfig, directory: Path) -> ArtifactRecord:
    """Write torch's table of operators, ordered and cut as the options say."""
    column = config.key_averages_sort
    if column == "auto":
        device = getattr(profiler, "use_device", None)
        column = "self_device_time_total" if device else "self_cpu_time_total"

    def fill(temporary: Path) -> None:
        table = profiler.key_averages().table(sort_by=column, row_limit=config.key_averages_rows)
        temporary.write_text(f"sorted by {column}\n{table}", encoding="utf-8", errors="replace")

    return _save("key_averages", directory / KEY_AVERAGES_FILE, fill)


def save_stacks(profiler: Any, config: CaptureConfig, directory: Path) -> ArtifactRecord:
    """Write folded stacks, one per line with its weight in microseconds, for flame graphs."""
    metric = config.stacks_metric
    if metric == "auto":
        device = getattr(profiler, "use_device", None)
        metric = "self_cuda_time_total" if device == "cuda" else "self_cpu_time_total"

    def fill(temporary: Path) -> None:
        profiler.export_stacks(str(temporary), metric)

    def check(temporary: Path) -> None:
        if temporary.stat().st_size == 0:
            raise ArtifactError(f"torch gave no stacks for {metric}")

    return _save("stacks", directory / STACKS_FILE, fill, check)


def _save(
    kind: str,
    path: Path,
    fill: Callable[[Path], None],
    check: Callable[[Path], None] | None = None,
) -> ArtifactRecord:
    """Make one file; what goes wrong becomes the record's problem and leaves no file."""
    relative = f"{path.parent.name}/{path.name}"
    try:
        with replacing(path, check) as temporary:
            fill(temporary)
        return ArtifactRecord(kind, relative, path.stat().st_size, digest_of(path))
    except Exception as error:  # noqa: BLE001 - the training must go on, and the manifest tells
        return ArtifactRecord(kind, relative, problem=f"{type(error).__name__}: {error}")


def _overlapping_blocks(path: Path) -> Iterator[bytes]:
    """Blocks that share a few bytes, so that no short word is cut in two."""
    overlap = max(map(len, _WORK))
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            yield block
            if len(block) < _BLOCK_BYTES:
                return
            file.seek(-overlap, os.SEEK_CUR)
