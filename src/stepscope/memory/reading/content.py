"""Gets a snapshot's content into memory, unpacked, without trusting what it claims to be."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepscope.errors import UnreadableInputError
from stepscope.trace.problems import Problems as SourceProblems
from stepscope.trace.source.content import Content
from stepscope.trace.source.opening import Source
from stepscope.trace.source.progress import Progress

_FIRST_BYTES = 16 * 1024 * 1024
_FREE_BYTES = 256 * 1024**2
_MOST_RATIO = 40
"""Unpacked bytes for each packed byte, above `_FREE_BYTES`; recorders' files pack about 10 to 1."""


def read_content(source: Source, progress: Progress) -> npt.NDArray[np.uint8]:
    """Everything a source holds, unpacked.

    The content is copied, not mapped: a file that shrinks while it is read does no harm.

    Raises:
        UnreadableInputError: Reading or unpacking fails, or what is unpacked grows out of all
            proportion.
    """
    problems = SourceProblems()
    content = source.blocks(problems, progress=progress.advance)
    content.expect_no_events()
    packed = source.is_compressed
    size = None if packed else source.size_bytes
    limit = _FREE_BYTES
    if source.size_bytes is not None:
        limit = max(limit, source.size_bytes * (_MOST_RATIO if packed else 2))
    elif not packed:
        limit = 2**62
    data = _read_all(source.name, content, size, limit)
    if problems:
        raise UnreadableInputError(
            f"{source.name}: the packed file is damaged or ends early; copy it again"
        )
    return data


def _read_all(name: str, content: Content, size: int | None, limit: int) -> npt.NDArray[np.uint8]:
    data = np.empty(_FIRST_BYTES if size is None else size + 1, np.uint8)
    used = 0
    while True:
        count = content.read_into(data.data[used:])
        used += count
        if used < len(data):
            return data[:used]
        if used > limit:
            raise UnreadableInputError(
                f"{name}: unpacks to more than {limit / 1e9:.1f} GB, far more than a recorder's "
                "file would; nothing was read"
            )
        grown = np.empty(2 * len(data), np.uint8)
        grown[:used] = data
        data = grown
