"""Makes this process as poor as Python on Windows, as far as the reading side of Stepscope can see.

    python -X warn_default_encoding -m tests.support.like_windows report trace.json + cache list

runs the commands, one after the other, and prints how each ended. They run with `sys.platform` as
on Windows, and without the modules and functions that only POSIX has. A file that is open or mapped
can neither be removed nor replaced, and a text file that is opened without naming its encoding is
an error, since Windows would take another than UTF-8. Other packages keep what they took from
Python when they were imported.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import mmap
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PACKAGES = (
    "aiohttp",
    "concurrent.futures.process",
    "duckdb",
    "fsspec.implementations.http",
    "fsspec.implementations.local",
    "isal.igzip_threaded",
    "llvmlite.binding",
    "lz4.block",
    "multiprocessing.popen_fork",
    "multiprocessing.popen_spawn_posix",
    "platformdirs",
    "polars",
    "psutil",
    "rich.console",
    "rich.table",
    "sqlite3",
    "tempfile",
    "uvicorn",
)
"""Imported first: they choose by the platform, and must choose what this machine has."""
POSIX_MODULES = {"fcntl", "grp", "pty", "pwd", "readline", "resource", "termios", "tty"}
POSIX_FUNCTIONS = {
    os: (
        "copy_file_range fchmod fchown fork forkpty getegid geteuid getgid getloadavg getpgid "
        "getuid killpg memfd_create mkfifo mknod nice O_CLOEXEC O_DIRECT O_DIRECTORY O_NOFOLLOW "
        "O_NONBLOCK posix_fadvise posix_fallocate pread preadv pwrite pwritev readv "
        "register_at_fork sched_getaffinity sched_setaffinity setsid splice sync sysconf uname "
        "writev"
    ),
    signal: "SIGHUP SIGPIPE SIGQUIT SIGUSR1 SIGUSR2 pthread_kill pthread_sigmask",
    mmap: (
        "MADV_DONTNEED MADV_HUGEPAGE MADV_SEQUENTIAL MADV_WILLNEED MAP_ANONYMOUS MAP_POPULATE "
        "MAP_PRIVATE MAP_SHARED PROT_READ PROT_WRITE"
    ),
}


def pretend() -> None:
    """Take away from this process what Windows does not have."""
    warnings.simplefilter("ignore", EncodingWarning)
    for package in PACKAGES:
        importlib.import_module(package)
    warnings.filterwarnings("error", category=EncodingWarning, module="stepscope")
    for module, names in POSIX_FUNCTIONS.items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    for module, name in ((os, "remove"), (os, "unlink"), (os, "rename"), (os, "replace")):
        setattr(module, name, _on_closed_files(getattr(module, name)))
    builtins.__import__ = _without_posix(builtins.__import__)
    sys.platform = "win32"


def _on_closed_files(function: Callable[..., None]) -> Callable[..., None]:
    """The function, refusing paths whose files this process holds open."""

    def checked(*paths: Any, **options: Any) -> None:
        for path in paths:
            if _is_held(os.path.realpath(path)):
                raise PermissionError(13, "this process still has the file open", str(path))
        function(*paths, **options)

    return checked


def _is_held(path: str) -> bool:
    """Whether a file is open or mapped in this process, as Linux tells it."""
    for opened in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            if str(opened.readlink()) == path:
                return True
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return any(line.endswith(f" {path}") for line in lines)


def _without_posix(real: Callable[..., Any]) -> Callable[..., Any]:
    def import_module(
        name: str,
        globals: Any = None,  # noqa: A002 - the names of the function it stands in for
        locals: Any = None,  # noqa: A002
        fromlist: Any = (),
        level: int = 0,
    ) -> Any:
        importer = (globals or {}).get("__name__", "")
        if level == 0 and name in POSIX_MODULES and importer.startswith("stepscope"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, globals, locals, fromlist, level)

    return import_module


def _commands(words: list[str]) -> Iterator[list[str]]:
    """The commands between the words `+`."""
    command: list[str] = []
    for word in [*words, "+"]:
        if word == "+":
            yield command
            command = []
        else:
            command.append(word)


if __name__ == "__main__":
    pretend()
    from stepscope.commands.main import main

    for asked in _commands(sys.argv[1:]):
        print(f"exit code {main(asked)}", flush=True)
