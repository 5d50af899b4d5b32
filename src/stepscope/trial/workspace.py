"""A place for each attempt in which the script finds its files, and changes none of the user's.

Copied afresh for each attempt are the working directory, the folders that the command names and
those of its Python scripts. So a script that resumes begins from the same state every time, and an
output directory that it creates does not exist yet. The copies keep their absolute paths below one
folder, the mirror, and what lies beside them and above them is linked there, so that `../data`
leads where it always did.

Large files, folders of very many files and environments are linked as well. `trial.inside.guard`
gives a script its own copy of a linked file before Python writes to it, and refuses to let it write
anywhere else outside the mirror. `trial.processes` keeps other programs from it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LARGE_BYTES = 32 * 2**20
MOST_BYTES = 2**30
MOST_FILES = 5_000
MOST_COPIED = 20_000
_MOST_SCANNED = 100_000
MOST_WATCHED = 20_000
_NOT_THEIRS = {".git", ".hg", "__pycache__", "node_modules", ".venv", "venv", ".mypy_cache"}
_MOST_NAMED = 5
_State = dict[str, tuple[int, int]]
_MOST_LINKED = 2_000
_LINKED = {".git", ".hg", "node_modules", ".venv", "venv", ".tox", ".mypy_cache"}
_LEFT_OUT = {"__pycache__"}
_CACHES = (
    "HF_HOME",
    "HF_DATASETS_CACHE",
    "TORCH_HOME",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "CUDA_CACHE_PATH",
    "MPLCONFIGDIR",
    "NUMBA_CACHE_DIR",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "WANDB_CACHE_DIR",
)
"""Variables that name folders of caches, which any run of the script fills."""
_SYSTEM = ("/dev", "/proc", "/sys", "/run", "/tmp", "/var/tmp")  # noqa: S108 - none is created


@dataclass(frozen=True)
class Place:
    """Where one attempt runs.

    Attributes:
        guarded: What `trial.inside.guard` is given.
    """

    command: tuple[str, ...]
    directory: Path
    guarded: dict[str, list[str]]


@dataclass(frozen=True)
class Workspace:
    """The folders of a command, and how they are copied.

    Attributes:
        own: Folders of our own, which are not copied: the scratch folder.
        writable: Paths to which the user lets trials write.
    """

    command: tuple[str, ...]
    directory: Path
    own: tuple[Path, ...]
    writable: tuple[Path, ...] = ()

    @property
    def roots(self) -> tuple[Path, ...]:
        """The folders that are copied, none of them within another."""
        return folders_of(self.command, self.directory)

    def create(self, mirror: Path) -> Place:
        """Make the copies.

        Args:
            mirror: A folder that does not exist.

        Raises:
            OSError: A file cannot be written, as when the disk is full.
        """
        mirror.mkdir(parents=True)
        roots = self.roots
        kept = {*(one.resolve() for one in self.own), mirror}
        inside = self.directory.resolve()
        _link_surroundings((*roots, inside), mirror, kept, frozenset(roots))
        left = _Left()
        for root in roots:
            _copy(root, _in_mirror(mirror, root), kept, left)
        return Place(
            tuple(_mapped(word, inside, roots, mirror) for word in self.command),
            _in_mirror(mirror, inside),
            {
                "mirror": [str(mirror)],
                "allowed": [str(path) for path in self._allowed()],
                "refused": [str(root) for root in roots],
            },
        )

    def _allowed(self) -> Iterator[Path]:
        yield from self.own
        yield from (path.absolute() for path in self.writable)
        yield Path(tempfile.gettempdir()).resolve()
        yield from map(Path, _SYSTEM)
        for name in _CACHES:
            if os.environ.get(name):
                yield Path(os.environ[name]).absolute()
        with suppress(RuntimeError, OSError):
            yield from (one for one in Path.home().glob(".*") if one.is_dir())
            yield Path.home() / ".cache"


def folders_of(command: Sequence[str], directory: Path) -> tuple[Path, ...]:
    """The working directory, the folders that a command names, and those of its Python scripts.

    None lies within another, and none holds the working directory. The home directory and those
    above it are no folders of a script's own: what they hold is linked.
    """
    here = directory.resolve()
    found = {here}
    for word in command:
        path = here / word.rpartition("=")[2]
        with suppress(OSError, ValueError):
            if word and path.is_dir() and os.access(path, os.W_OK):
                found.add(path.resolve())
            elif path.suffix == ".py" and path.is_file():
                found.add(path.resolve().parent)
    found -= {*here.parents, *_shared()}
    return tuple(sorted(one for one in found if not any(up in found for up in one.parents)))


def _shared() -> set[Path]:
    home = Path(os.path.expanduser("~")).resolve()  # noqa: PTH111 - never raises
    return {home, *home.parents}


def _in_mirror(mirror: Path, path: Path) -> Path:
    return mirror / path.relative_to(path.anchor)


def _mapped(word: str, directory: Path, roots: Iterable[Path], mirror: Path) -> str:
    """A word of the command with an absolute path in a copied folder led into the copy."""
    name, equals, value = word.rpartition("=")
    if not Path(value).is_absolute():
        return word
    path = Path(os.path.normpath(directory / value))
    with suppress(OSError):
        path = path.parent.resolve() / path.name
    if any(root == path or root in path.parents for root in roots):
        return f"{name}{equals}{_in_mirror(mirror, path)}"
    return word


def _link_surroundings(
    folders: Sequence[Path], mirror: Path, kept: set[Path], roots: frozenset[Path]
) -> None:
    """Link what lies in some folders, and above them, and is not copied."""
    real = {up for folder in folders for up in (folder, *folder.parents)}
    inside = {path for path in real if not roots.isdisjoint((path, *path.parents))}
    for folder in sorted(real - inside):
        target = _in_mirror(mirror, folder)
        target.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):
            for number, entry in enumerate(sorted(folder.iterdir())):
                if number >= _MOST_LINKED:
                    break
                if entry not in real and entry not in kept:
                    (target / entry.name).symlink_to(entry)


@dataclass
class _Left:
    """How much may still be copied."""

    size_bytes: int = MOST_BYTES
    files: int = MOST_COPIED


def _copy(root: Path, target: Path, kept: set[Path], left: _Left) -> None:
    """Copy a folder as far as the rules and what is left allow, and link the rest."""
    ahead = [(root, target)]
    while ahead:
        source, into = ahead.pop()
        into.mkdir(parents=True, exist_ok=True)
        try:
            entries = sorted(os.scandir(source), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            path, copy = Path(entry.path), into / entry.name
            if entry.name in _LEFT_OUT or path in kept:
                continue
            # A file that vanishes meanwhile, or that may not be read, is not the trial's.
            with suppress(FileNotFoundError, PermissionError):
                if entry.is_symlink():
                    _link(path, copy, root)
                elif entry.is_dir():
                    is_linked = entry.name in _LINKED or left.files <= 0 or _is_vast(path)
                    if is_linked and not any(path in one.parents for one in kept):
                        copy.symlink_to(path)
                    else:
                        ahead.append((path, copy))
                elif entry.is_file():
                    size = entry.stat().st_size
                    if size > min(LARGE_BYTES, left.size_bytes) or left.files <= 0:
                        copy.symlink_to(path)
                    else:
                        shutil.copy2(path, copy)
                        left.size_bytes -= size
                        left.files -= 1


def _link(path: Path, copy: Path, root: Path) -> None:
    """Copy a link. One that stays within the folder leads to the copy's file."""
    leads_to = path.parent / path.readlink()
    stays = root in Path(os.path.normpath(leads_to)).parents
    relative = os.path.relpath(leads_to, path.parent)
    copy.symlink_to(relative if stays else leads_to)


def _is_vast(folder: Path) -> bool:
    """Whether a folder holds more than `MOST_FILES` files, and no folder in it does."""
    left = _MOST_SCANNED

    def count(top: Path) -> int:
        nonlocal left
        found, ahead = 0, [top]
        while ahead and found <= MOST_FILES and left > 0:
            with suppress(OSError), os.scandir(ahead.pop()) as entries:
                for entry in entries:
                    found, left = found + 1, left - 1
                    if entry.is_dir(follow_symlinks=False):
                        ahead.append(Path(entry.path))
                    if found > MOST_FILES:
                        break
        return found

    if count(folder) <= MOST_FILES:
        return False
    with suppress(OSError):
        for entry in sorted(folder.iterdir()):
            if entry.is_dir() and not entry.is_symlink() and count(entry) > MOST_FILES:
                return False
    return True


# -- what changed in spite of the copies -----------------------------------------------------------


class FolderWatch:
    """Compares folders before and after.

    Args:
        own: A folder of our own, to leave out.
    """

    def __init__(self, folders: Sequence[Path], own: Path) -> None:
        self._own = str(own.resolve())
        self._streams = _standard_streams()
        self._folders = folders
        self._before = self._state()

    def warnings(self) -> tuple[str, ...]:
        """What was written since the watch began."""
        if len(self._before) >= MOST_WATCHED:
            where = ", ".join(map(str, self._folders))
            what = "whether something wrote into them was not checked"
            return (f"more than {MOST_WATCHED:,} files in {where}: {what}",)
        after = self._state()
        changed = [path for path in sorted(after) if self._before.get(path) != after[path]]
        if not changed:
            return ()
        names = ", ".join(map(_short, changed[:_MOST_NAMED]))
        more = len(changed) - _MOST_NAMED
        rest = f" and {more} more" if more > 0 else ""
        what = (
            f"files changed in your folders during the trials: {names}{rest}. Each trial had a copy"
            " of these folders, so another program wrote them, or one that the script starts, by"
            " its absolute path"
        )
        return (what,)

    def _state(self) -> _State:
        found: _State = {}
        for folder in self._folders:
            for entry in _walk(str(folder), self._own):
                if len(found) >= MOST_WATCHED:
                    return found
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                if (status.st_dev, status.st_ino) in self._streams:
                    continue
                found[entry.path] = (status.st_mtime_ns, status.st_size)
        return found


def _standard_streams() -> set[tuple[int, int]]:
    """Files to which the user led the output of this process."""
    found = set()
    for number in (1, 2):
        with suppress(OSError):
            status = os.fstat(number)
            found.add((status.st_dev, status.st_ino))
    return found


def _walk(folder: str, own: str) -> Iterator[os.DirEntry[str]]:
    ahead = [folder]
    while ahead:
        try:
            entries = list(os.scandir(ahead.pop()))
        except OSError:
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in _NOT_THEIRS and entry.path != own:
                    ahead.append(entry.path)
            elif entry.is_file(follow_symlinks=False):
                yield entry


def _short(path: str) -> str:
    try:
        return os.path.relpath(path)
    except ValueError:  # another drive
        return path
