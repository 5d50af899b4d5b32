"""Keeps a script that is tried from changing files outside the folders that were made for it.

An audit hook sees what Python is about to open for writing, rename, remove or create, before it
does. A link to a large file of the user becomes a file of the trial's own before it is written to.
Anything else outside the trial's folders is refused, and noted. Not seen are programs that the
script starts, and libraries that open files without Python; of these, `torch.save` and safetensors
are asked. Where the system has Landlock, `trial.processes` refuses what is not seen here.
"""

from __future__ import annotations

import errno
import functools
import os
import shutil
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from stepscope.capture.steps.replacements import when_imported
from stepscope.trial.patches import Patches

SUFFIX = ".refused"
"""Of the file, one per process, that names what was refused."""
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_PLACES = {
    "os.remove": 1,
    "os.rmdir": 1,
    "os.mkdir": 1,
    "os.rename": 2,
    "os.symlink": 2,
    "os.link": 2,
    "shutil.rmtree": 1,
}
"""Events that change a folder, to the number of their arguments that are paths."""


def begin(request: dict[str, Any]) -> None:
    """Guard this process from its start; see `trial.inside.companion.join`."""
    WriteGuard(request["guarded"], Path(request["notes"])).watch()


class WriteGuard:
    """Decides on each write of this process.

    Args:
        places: "mirror" (the trial's folder), "allowed" and "refused" (paths, of which the longest
            that holds a file decides).
    """

    def __init__(self, places: dict[str, list[str]], notes: Path) -> None:
        self._rules = {os.path.realpath(path): True for path in places["allowed"]}
        self._rules |= dict.fromkeys(places["refused"], False)
        self._rules |= {os.path.realpath(path): True for path in places["mirror"]}
        self._rules |= {os.path.realpath(notes): True}
        self._notes = notes
        self._busy = threading.local()

    def watch(self) -> None:
        """Watch what Python writes in this process, and in those that it forks."""
        sys.addaudithook(self._on_event)

    def watch_savers(self, patches: Patches) -> None:
        """Watch functions that write without Python's knowledge."""
        import torch

        for owner in (torch, torch.serialization):
            patches.replace(owner, "save", self._asking)
        when_imported(
            "safetensors.torch", lambda module: patches.replace(module, "save_file", self._asking)
        )

    def _asking(self, save: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(save)
        def saved(what: Any, *arguments: Any, **keywords: Any) -> Any:
            names = (keywords.get(name) for name in ("f", "filename"))
            target = arguments[0] if arguments else next(filter(None, names), None)
            if isinstance(target, str | os.PathLike):
                self.check(target, truncates=True)
            return save(what, *arguments, **keywords)

        return saved

    def _on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            writes = bool(flags & _WRITING) if isinstance(flags, int) else False
            if isinstance(mode, str):
                writes = any(letter in mode for letter in "wax+")
            if writes and isinstance(path, str | bytes | os.PathLike):
                truncates = mode[:1] == "w" if isinstance(mode, str) else flags & os.O_TRUNC
                self.check(path, truncates=bool(truncates))
        elif event == "os.truncate":
            if isinstance(arguments[0], str | bytes | os.PathLike):
                self.check(arguments[0])
        elif event in _PLACES:
            if isinstance(arguments[-1], int) and arguments[-1] >= 0:
                return  # relative to an open folder: what opened it was checked
            # A link that is renamed or removed is not what it leads to. The first of two paths is
            # only read where a link is made.
            paths = arguments[: _PLACES[event]]
            for path in paths[1:] if event in ("os.symlink", "os.link") else paths:
                if isinstance(path, str | bytes | os.PathLike):
                    self._check_place(os.fsdecode(path), creates=event == "os.mkdir")

    def check(self, path: Any, *, truncates: bool = False) -> None:
        """Let a file be written, after a copy was made of it if it is a linked one.

        Raises:
            PermissionError: It lies outside the trial's folders.
        """
        if getattr(self._busy, "is_on", False):
            return
        name = os.fsdecode(path)
        real = os.path.realpath(name)
        if self._may_write(real):
            return
        # The link itself must lie in the mirror; a link to a folder leads out of it.
        lies_in = os.path.realpath(os.path.dirname(os.path.abspath(name)))  # noqa: PTH100, PTH120
        if Path(name).is_symlink() and self._may_write(lies_in) and not Path(real).is_dir():
            self._busy.is_on = True
            try:
                self._detach(Path(name), Path(real), truncates=truncates)
            finally:
                self._busy.is_on = False
            return
        self._refuse(real)

    def _check_place(self, name: str, *, creates: bool) -> None:
        if getattr(self._busy, "is_on", False):
            return
        parent, last = os.path.split(os.path.abspath(name))  # noqa: PTH100
        real = os.path.join(os.path.realpath(parent), last)  # noqa: PTH118 - it may be a link
        # Creating a folder that exists changes nothing.
        if not self._may_write(real) and not (creates and Path(real).is_dir()):
            self._refuse(real)

    @staticmethod
    def _detach(link: Path, original: Path, *, truncates: bool) -> None:
        """Put a file of the trial's own in the place of a link."""
        link.unlink()
        if original.is_file() and not truncates:
            shutil.copy2(original, link)

    def _may_write(self, real: str) -> bool:
        if f"{os.sep}__pycache__{os.sep}" in f"{real}{os.sep}" or real.endswith(".pyc"):
            return True
        path = real
        while True:
            known = self._rules.get(path)
            if known is not None:
                return known
            above = os.path.dirname(path)  # noqa: PTH120 - called for each write
            if above == path:
                return False
            path = above

    def _refuse(self, real: str) -> None:
        self._busy.is_on = True
        try:
            with suppress(OSError), (self._notes / f"{os.getpid()}{SUFFIX}").open("a") as file:
                file.write(f"{real}\n")
        finally:
            self._busy.is_on = False
        raise PermissionError(errno.EACCES, "stepscope keeps trials from writing here", real)
