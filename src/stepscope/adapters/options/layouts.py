"""Writes files beside the run directory under the names that the frameworks' guides promise.

They are hard links to the files of the run where the disk allows that, and copies otherwise. Each
is put in place when its window is finished. Files that an earlier recording left under the same
names are moved away first: a recording that makes fewer files would leave the rest beside its own.
"""

from __future__ import annotations

import contextlib
import datetime
import glob
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.capture.messages import say
from stepscope.capture.ranks import RankIdentity
from stepscope.run.files import numbered, replacing, write_atomically
from stepscope.run.manifest import ArtifactRecord, WindowRecord
from stepscope.system import peak_resident_bytes

if TYPE_CHECKING:
    from stepscope.capture.session import CaptureSession

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._+=@-]+")


@dataclass(frozen=True)
class Destination:
    """Where the files go, and what their names are made from.

    Attributes:
        words: The script's name for its model ("model_name") and its training ("train_type"), and
            other parts of a layout's names.
        overviews: Functions that add text to an overview of memory.
    """

    root: Path
    identity: RankIdentity = field(default_factory=RankIdentity)
    words: Mapping[str, str] = field(default_factory=dict)
    overviews: Sequence[Callable[[], str]] = ()

    def fields(self) -> dict[str, str]:
        """What the names of files are made of, but for what each file adds to it."""
        model = self.words.get("model_name", "").rstrip("/").rpartition("/")[2]
        identity = self.identity
        return {
            "model": _plain(model, "model"),
            "training": _plain(self.words.get("train_type", ""), "train"),
            "rank": str(identity.rank),
            "local": str(identity.local_rank),
            # The first rank has the plain name.
            "of_rank": "" if identity.rank == 0 else f"-rank{identity.rank}",
        }


@dataclass(frozen=True)
class _File:
    """A file of a layout.

    Attributes:
        kind: What it is in the run.
        path: Where it lies in the layout, with names of fields in braces.
        is_shared: Whether the windows share it: then it is that of the newest.
        with_memory: Whether an overview of memory follows its content.
        is_lone: Whether it belongs to no window.
    """

    kind: str
    path: str
    is_shared: bool = True
    with_memory: bool = False
    is_lone: bool = False


_FSDP = "{model}_{training}-{local}/{model}-{training}-"
LAYOUTS: dict[str, tuple[_File, ...]] = {
    "fsdp-qlora": (
        _File("trace", _FSDP + "chrome-trace.{suffix}"),
        _File("key_averages", _FSDP + "key_averages.{suffix}"),
        _File("memory_timeline", _FSDP + "memory-timeline.{suffix}"),
        _File("stacks", _FSDP + "stacks.{suffix}"),
    ),
    "recipe": (
        _File("trace", "trace{of_rank}.{suffix}"),
        _File("snapshot", "{stem}{of_rank}.{suffix}", is_lone=True),
    ),
    "sfm": (
        _File("trace", "trace-rank{rank}-window{window}.{suffix}", is_shared=False),
        _File("key_averages", "profiler_list{of_rank}.dat", with_memory=True),
        _File("deepspeed_flops", "profiler_ds{of_rank}.txt", is_lone=True),
    ),
    "torchtitan": (
        _File("trace", "iteration_{done}/{leaf}/rank{rank}_trace.{suffix}", is_shared=False),
    ),
    "torchtune": (
        _File("key_averages", "iteration_{done}/rank{rank}_key_averages.txt", is_shared=False),
        _File("stacks", "iteration_{done}/rank{rank}_stacks.txt", is_shared=False),
        _File(
            "memory_timeline", "iteration_{done}/rank{rank}_memory-timeline.html", is_shared=False
        ),
        # TensorBoard's name.
        _File("trace", "iteration_{done}/rank{rank}.{ns}.pt.trace.json.gz", is_shared=False),
    ),
}


def put_window(
    layout: str,
    destination: Destination,
    rank_directory: Path,
    window: WindowRecord,
    *,
    is_newest: bool = True,
) -> list[Path]:
    """Put the files of a finished window in place; returns them.

    Files of several windows are made at the same time, and names that they share belong to the
    newest of those that have been put in place.
    """
    last = window.last_step if window.last_step is not None else (window.first_step or 0) - 1
    fields = {
        **destination.fields(),
        "window": str(window.index),
        # Steps done when the window ended, with those before a resumption.
        "done": str(int(destination.words.get("steps_before", "0")) + last + 1),
        "leaf": destination.words.get("leaf", ""),
        "ns": str(time.time_ns()),
    }
    sources = _files(rank_directory, window)
    put = []
    for file in LAYOUTS[layout]:
        source = None if file.is_lone else sources.get(file.kind)
        if source is None or (file.is_shared and not is_newest):
            continue
        suffix = source.name.partition(".")[2]
        target = destination.root / file.path.format(**fields, suffix=suffix)
        if file.with_memory:
            more = "".join(f"\n{overview()}" for overview in destination.overviews)
            text = f"{source.read_text(encoding='utf-8')}\n{memory_overview()}{more}"
            write_atomically(target, text.encode())
        else:
            put_file(source, target)
        put.append(target)
    return put


def put_lone_file(layout: str, destination: Destination, kind: str, source: Path) -> Path | None:
    """Put a file that belongs to no window in place; None if the layout does not have it."""
    for file in LAYOUTS.get(layout, ()):
        if file.is_lone and file.kind == kind:
            stem, suffix = source.stem, source.suffix.lstrip(".")
            stem = stem.removesuffix(f"_rank{destination.identity.rank}")
            path = file.path.format(**destination.fields(), stem=stem, suffix=suffix)
            return put_file(source, destination.root / path)
    return None


def put_snapshot(target: Path, destination: Destination, source: Path) -> Path:
    """Put a memory snapshot under the user's path; ranks after the first add their number."""
    name = f"{target.stem}{destination.fields()['of_rank']}{target.suffix}"
    return put_file(source, target.with_name(name))


def memory_overview() -> str:
    """The memory of this process, on the host and on each GPU that it uses, as text."""
    import psutil
    import torch

    own = psutil.Process().memory_info()
    lines = ["Memory overview", "", f"Host, resident: {own.rss / 1024**3:.2f} GiB"]
    peak = peak_resident_bytes()
    if peak is not None:
        lines.append(f"Host, peak resident: {peak / 1024**3:.2f} GiB")
    if not torch.cuda.is_initialized():
        lines.append("GPU: none in use in this process")
        return "\n".join(lines) + "\n"
    for device in range(torch.cuda.device_count()):
        if torch.cuda.memory_reserved(device):
            lines += ["", f"GPU {device}", torch.cuda.memory_summary(device)]
    return "\n".join(lines) + "\n"


def _files(rank_directory: Path, window: WindowRecord) -> dict[str, Path]:
    """The window's files: the first of each kind."""
    found: dict[str, Path] = {}
    for artifact in window.artifacts:
        path = rank_directory / artifact.path
        if not artifact.problem and artifact.bytes and path.is_file():
            found.setdefault(artifact.kind, path)
    return found


def put_file(source: Path, target: Path) -> Path:
    """Put a file under a second name, without using space if the disk has hard links."""
    with replacing(target) as temporary:
        try:
            temporary.hardlink_to(source)
        except OSError:
            shutil.copyfile(source, temporary)
    return target


def _plain(text: str, otherwise: str) -> str:
    """Make a text usable in a file name."""
    return _NOT_IN_NAMES.sub("_", text).strip("._") or otherwise


# -- files of an earlier recording ---------------------------------------------------------------

EARLIER = "earlier"
"""Folder that the files are moved to, beside the new ones."""


def move_earlier(layout: str, destination: Destination) -> list[Path]:
    """Move files that an earlier recording left under a layout's names.

    Each goes to `earlier/{time}/` in its folder, where the time is that of the newest of them. The
    first rank also moves those of ranks that the job does not have.

    Returns:
        The folders that they were moved to.

    Raises:
        OSError: A file cannot be moved.
    """
    found: dict[Path, set[Path]] = {}
    for path in _earlier_files(layout, destination):
        found.setdefault(path.parent, set()).add(path)
    targets = []
    for folder, paths in found.items():
        targets.append(_target(folder, paths))
        for path in paths:
            path.replace(targets[-1] / path.name)
    return targets


def _earlier_files(layout: str, destination: Destination) -> Iterator[Path]:
    named, world_size = destination.fields(), destination.identity.world_size
    plain = {name: re.escape(text) for name, text in named.items()}
    for file in LAYOUTS.get(layout, ()):
        if "{done}" in file.path or "{stem}" in file.path:
            continue  # no recording has the names of another
        own = {name: glob.escape(text) for name, text in named.items()}
        own |= {"window": "*", "suffix": "json*" if file.kind == "trace" else "*"}
        yield from filter(Path.is_file, destination.root.glob(file.path.format(**own)))
        if destination.identity.rank:
            continue
        shape = re.escape(file.path)
        for name, text in {**plain, **_ANY_RANK}.items():
            shape = shape.replace(re.escape(f"{{{name}}}"), text)
        others = own | {"rank": "*", "local": "*", "of_rank": "-rank*"}
        for path in destination.root.glob(file.path.format(**others)):
            found = re.fullmatch(shape, path.relative_to(destination.root).as_posix())
            if path.is_file() and found is not None and int(found[1]) >= world_size:
                yield path


_ANY_RANK = {
    "rank": r"(\d+)",
    "local": r"(\d+)",
    "of_rank": r"-rank(\d+)",
    "window": r"\d+",
    "suffix": ".*",
}
"""The fields of a name that differ between ranks and windows, as regular expressions."""


def _target(folder: Path, paths: set[Path]) -> Path:
    newest_s = max(path.stat().st_mtime for path in paths)
    time = datetime.datetime.fromtimestamp(newest_s, datetime.timezone.utc)
    for target in numbered(folder / EARLIER / f"{time:%Y%m%dT%H%M%SZ}"):
        with contextlib.suppress(FileExistsError):
            target.mkdir(parents=True)
            break
    return target


class Placing:
    """Puts the files of one recording beside its run.

    Args:
        folder: This rank's folder in the run.
        layout: Name of the layout; empty for none.
        snapshot_path: Where to put the newest memory snapshot as well, or None.
        placed: Called with the files that were put in place for a window.
    """

    def __init__(
        self,
        session: CaptureSession,
        folder: Path,
        *,
        layout: str,
        words: Mapping[str, str],
        snapshot_path: Path | None,
        placed: Callable[[list[Path]], object] | None,
    ) -> None:
        self._session = session
        self._folder = folder
        self._layout = layout
        root, identity = folder.parent.parent, session.identity
        self._destination = Destination(root, identity, words, session.overviews)
        self._snapshot_path = snapshot_path
        self._placed = placed
        self._newest = -1
        self._has_placed = False

    def put_window(self, window: WindowRecord) -> list[Path]:
        """Put the files of a window in place; returns them. Raises nothing."""
        if not self._layout or window.state not in {"complete", "partial"}:
            return []
        self._newest = max(self._newest, window.index)
        self._make_room()
        files: list[Path] = []
        with self._session.contain("writing the files of the layout"):
            is_newest = window.index == self._newest
            files = put_window(
                self._layout, self._destination, self._folder, window, is_newest=is_newest
            )
            if self._placed is not None and files:
                self._placed(files)
        return files

    def put_file(self, record: ArtifactRecord) -> None:
        """Put a file that belongs to no window in place. Raises nothing."""
        destination, source = self._destination, self._folder / record.path
        if any(file.is_lone for file in LAYOUTS.get(self._layout, ()) if file.kind == record.kind):
            self._make_room()
        with self._session.contain("writing a file of the layout"):
            put_lone_file(self._layout, destination, record.kind, source)
            if record.kind == "snapshot" and self._snapshot_path is not None:
                put_snapshot(self._snapshot_path, destination, source)

    def _make_room(self) -> None:
        """Move the files of an earlier recording, before the first file of this one."""
        if self._has_placed:
            return
        self._has_placed = True
        with self._session.contain("moving the files of an earlier recording"):
            for folder in move_earlier(self._layout, self._destination):
                if self._session.config.announce:
                    say(f"files of an earlier recording were moved to {folder}")
