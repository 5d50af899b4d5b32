"""Makes one file of a window, so that its errors do not affect other files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from stepscope.run.figures import error_in_words
from stepscope.run.files import digest_of, replacing
from stepscope.run.manifest import ArtifactRecord


class EmptyArtifactError(Exception):
    """An artifact is unexpectedly empty."""


def make_file(
    kind: str,
    path: Path,
    fill: Callable[[Path], object],
    check: Callable[[Path], None] | None = None,
) -> ArtifactRecord:
    """Make one file; an error becomes the record's problem and leaves no file."""
    relative = f"{path.parent.name}/{path.name}"
    try:
        with replacing(path, check) as temporary:
            fill(temporary)
        return ArtifactRecord(kind, relative, path.stat().st_size, digest_of(path))
    except Exception as error:  # noqa: BLE001 - one artifact must not affect the others
        return ArtifactRecord(kind, relative, problem=error_in_words(error))


def listed(kind: str, path: Path) -> ArtifactRecord:
    """A file that the training process wrote itself."""
    relative = f"{path.parent.name}/{path.name}"
    try:
        size = path.stat().st_size
        if not size:
            raise EmptyArtifactError("the file is empty")
        return ArtifactRecord(kind, relative, size, digest_of(path))
    except (OSError, EmptyArtifactError) as error:
        return ArtifactRecord(kind, relative, problem=error_in_words(error))
