"""Answers cached in a store: small files beside its tables, removed with it.

`TRACE.stepscope/answers/` holds one file per answer, named after its key: a line that says what it
is, and the text. An answer is valid only for the store it was made from, and while it is unchanged.
As everything in a store, it is used only if nobody else could have written it (`owners.py`).

An answer is about a trace, which the store's key identifies. Whether the tables in the store are
still whole does not matter to it, so reading one needs neither them nor polars.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from dataclasses import asdict, dataclass
from pathlib import Path

from stepscope.run.files import write_atomically
from stepscope.trace.store.contents import is_own_directory
from stepscope.trace.store.directory import read_believed, read_manifest
from stepscope.trace.store.origin import key_of, store_paths
from stepscope.trace.store.owners import keep_to_owner

ANSWERS = "answers"
"""Name of the directory in a store."""
MOST_ANSWERS = 100
"""Answers in one store; of more, those that were used longest ago are removed."""
MOST_BYTES_TOGETHER = 64_000_000
"""Size of all answers in one store, likewise."""
MOST_BYTES = 16_000_000
"""Size of the largest answer that is cached."""
_FORMAT = "stepscope answer"


@dataclass(frozen=True)
class CachedAnswers:
    """The answers in one store.

    Attributes:
        store: The directory of the store.
        identity: Identifier of the store; a new one is generated whenever the store is rewritten.
    """

    store: Path
    identity: str

    def read(self, key: str) -> str | None:
        """Returns the answer with a key; None if there is no valid one."""
        if not is_own_directory(self.store / ANSWERS):
            return None
        try:
            head, _, body = read_believed(self._path(key), MOST_BYTES).partition(b"\n")
            if json.loads(head) != self._head(key, body):
                return None
            text = body.decode("ascii")
        except (OSError, ValueError, RecursionError):
            return None
        for used in (self.store, self._path(key)):
            with contextlib.suppress(OSError):  # it may be read-only
                os.utime(used)
        return text

    def keep(self, key: str, text: str) -> None:
        """Caches an answer, completely or not at all.

        A read-only store or a full disk is not an error: the answer is made again next time.

        Args:
            key: Stands for all that the answer depends on, apart from the trace. Hexadecimal.
            text: The answer, in ASCII.
        """
        body = text.encode("ascii")
        content = json.dumps(self._head(key, body)).encode("ascii") + b"\n" + body
        directory = self.store / ANSWERS
        if len(content) > MOST_BYTES:
            return
        with contextlib.suppress(OSError):
            directory.mkdir(0o755, exist_ok=True)
            if is_own_directory(directory):
                write_atomically(self._path(key), content)
                keep_to_owner(directory)
                _remove_unused(directory)

    def _path(self, key: str) -> Path:
        return self.store / ANSWERS / f"{key}.json"

    def _head(self, key: str, body: bytes) -> dict[str, str]:
        digest = hashlib.blake2b(body, digest_size=16).hexdigest()
        return {"format": _FORMAT, "store": self.identity, "key": key, "digest": digest}


def answers_beside(trace: Path) -> CachedAnswers | None:
    """The answers in the store of a trace file; None if it has no valid store.

    Raises:
        UnreadableInputError: The file cannot be read.
    """
    # Most small traces have none: then the file itself is not read.
    stores = [path for path in store_paths(trace) if is_own_directory(path)]
    key = key_of(trace) if stores else None
    if key is None:
        return None
    for store in stores:
        manifest = read_manifest(store)
        identity = manifest.get("identity")
        if manifest.get("key") == asdict(key) and isinstance(identity, str):
            return CachedAnswers(store, identity)
    return None


def _remove_unused(directory: Path) -> None:
    """Removes the answers used longest ago, and with them what killed processes left unfinished."""
    found = [(entry.lstat(), entry) for entry in directory.iterdir()]
    files = [
        (status.st_mtime_ns, status.st_size, entry)
        for status, entry in found
        if stat.S_ISREG(status.st_mode)
    ]
    kept_bytes = 0
    for number, (_, size_bytes, entry) in enumerate(sorted(files, reverse=True)):
        kept_bytes += size_bytes
        if number >= MOST_ANSWERS or kept_bytes > MOST_BYTES_TOGETHER:
            entry.unlink(missing_ok=True)
