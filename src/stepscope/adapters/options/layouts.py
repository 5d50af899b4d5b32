"""Writes files beside the run directory under the names that the frameworks' guides promise.

They are hard links to the files of the run where the disk allows that, and copies otherwise. Each
is put in place when its window is finished. Files that an earlier recording left under the same
names are moved away first: a recording that makes fewer files would leave the rest beside its own.
"""

from __future__ import annotations

import datetime
import glob
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.capture.messages import say
from stepscope.capture.ranks import RankIdentity
from stepscope.run.files import replacing, write_atomically
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
        is_newest: Whether no later window has been put in place. Files of several windows are made
            at the same time, and names that they share belong to the newest.
    """

    root: Path
    identity: RankIdentity = field(default_factory=RankIdentity)
    words: Mapping[str, str] = field(default_factory=dict)
    overviews: tuple[Callable[[], str], ...] = ()
    is_newest: bool = True

    @property
    def model(self) -> str:
        """The name of the model, without the organisation or folder before it."""
        return _plain(self.words.get("model_name", "").rstrip("/").rpartition("/")[2], "model")

    @property
    def train_type(self) -> str:
        """The kind of training."""
        return _plain(self.words.get("train_type", ""), "train")

    def by_rank(self, stem: str) -> str:
        """A name that is unique to the rank: the first rank has the plain one."""
        rank = self.identity.rank
        return stem if rank == 0 else f"{stem}-rank{rank}"


Layout = Callable[[Destination, Path, WindowRecord], list[Path]]
"""Puts a finished window's files in place, given the destination, the rank's folder and the window.
"""


FSDP_NAMES = {
    "trace": "chrome-trace",
    "key_averages": "key_averages",
    "memory_timeline": "memory-timeline",
    "stacks": "stacks",
}
"""Kind of file to its name in fsdp-qlora's guide."""


def fsdp_qlora(destination: Destination, rank_directory: Path, window: WindowRecord) -> list[Path]:
    """`{model}_{train_type}-{local_rank}/`, with the four files of the newest window."""
    if not destination.is_newest:
        return []
    folder, stem = fsdp_folder(destination)
    put = []
    for kind, source in _files(rank_directory, window).items():
        if kind in FSDP_NAMES:
            suffix = source.name.partition(".")[2]
            put.append(put_file(source, folder / f"{stem}-{FSDP_NAMES[kind]}.{suffix}"))
    return put


def fsdp_folder(destination: Destination) -> tuple[Path, str]:
    """The folder of the local rank, and how its files' names begin."""
    model, train_type = destination.model, destination.train_type
    folder = destination.root / f"{model}_{train_type}-{destination.identity.local_rank}"
    return folder, f"{model}-{train_type}"


def recipe(destination: Destination, rank_directory: Path, window: WindowRecord) -> list[Path]:
    """`trace.json`: the trace of the newest window."""
    source = _files(rank_directory, window).get("trace")
    if source is None or not destination.is_newest:
        return []
    suffix = source.name.partition(".")[2]
    return [put_file(source, destination.root / f"{destination.by_rank('trace')}.{suffix}")]


def sfm(destination: Destination, rank_directory: Path, window: WindowRecord) -> list[Path]:
    """One trace per window, and `profiler_list.dat` of the newest."""
    files = _files(rank_directory, window)
    put = []
    if "trace" in files:
        suffix = files["trace"].name.partition(".")[2]
        name = f"trace-rank{destination.identity.rank}-window{window.index}.{suffix}"
        put.append(put_file(files["trace"], destination.root / name))
    if "key_averages" in files and destination.is_newest:
        target = destination.root / f"{destination.by_rank('profiler_list')}.dat"
        table = files["key_averages"].read_text(encoding="utf-8")
        more = "".join(f"\n{overview()}" for overview in destination.overviews)
        write_atomically(target, f"{table}\n{memory_overview()}{more}".encode())
        put.append(target)
    return put


def torchtitan(destination: Destination, rank_directory: Path, window: WindowRecord) -> list[Path]:
    """`iteration_{step}/{leaf}/rank{rank}_trace.json[.gz]`, with the trainer's step count."""
    source = _files(rank_directory, window).get("trace")
    if source is None:
        return []
    folder = (
        destination.root
        / f"iteration_{_steps_done(destination, window)}"
        / destination.words.get("leaf", "")
    )
    suffix = source.name.partition(".")[2]
    return [put_file(source, folder / f"rank{destination.identity.rank}_trace.{suffix}")]


def torchtune(destination: Destination, rank_directory: Path, window: WindowRecord) -> list[Path]:
    """`iteration_{step}/rank{rank}_*`: the table, the stacks and the memory timeline.

    The trace has TensorBoard's name there: `rank{rank}.{ns}.pt.trace.json.gz`.
    """
    folder = destination.root / f"iteration_{_steps_done(destination, window)}"
    names = {
        "key_averages": "_key_averages.txt",
        "stacks": "_stacks.txt",
        "memory_timeline": "_memory-timeline.html",
        "trace": f".{time.time_ns()}.pt.trace.json.gz",
    }
    files = _files(rank_directory, window)
    return [
        put_file(files[kind], folder / f"rank{destination.identity.rank}{name}")
        for kind, name in names.items()
        if kind in files
    ]


def _steps_done(destination: Destination, window: WindowRecord) -> int:
    """Number of steps done when the window ended, including those before a resumption."""
    last = window.last_step if window.last_step is not None else (window.first_step or 0) - 1
    return int(destination.words.get("steps_before", "0")) + last + 1


LAYOUTS: dict[str, Layout] = {
    "fsdp-qlora": fsdp_qlora,
    "recipe": recipe,
    "sfm": sfm,
    "torchtitan": torchtitan,
    "torchtune": torchtune,
}
LONE_FILES = {"sfm": {"deepspeed_flops": "profiler_ds.txt"}, "recipe": {"snapshot": ""}}
"""By layout and kind: names of files that belong to no window; empty to keep their own name."""


def put_lone_file(layout: str, destination: Destination, kind: str, source: Path) -> Path | None:
    """Put a file that belongs to no window in place; None if the layout does not have it."""
    name = LONE_FILES.get(layout, {}).get(kind)
    if name is None:
        return None
    wanted = Path(name or source.name)
    stem = wanted.stem.removesuffix(f"_rank{destination.identity.rank}")
    return put_file(source, destination.root / f"{destination.by_rank(stem)}{wanted.suffix}")


def put_snapshot(target: Path, destination: Destination, source: Path) -> Path:
    """Put a memory snapshot under the user's path; ranks after the first add their number."""
    return put_file(source, target.with_name(f"{destination.by_rank(target.stem)}{target.suffix}"))


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
_MOST_RANKS = 4096

Patterns = Callable[[Destination], Iterator[tuple[Path, str]]]
"""The folders and the names that a layout may have written for this rank, as glob patterns. The
first rank also lists those of ranks that the job does not have."""


def _fsdp_qlora_patterns(destination: Destination) -> Iterator[tuple[Path, str]]:
    folder, stem = fsdp_folder(destination)
    folders = [folder]
    if destination.identity.rank == 0:
        name, _, _ = folder.name.rpartition("-")
        for other in folder.parent.glob(f"{glob.escape(name)}-*"):
            number = other.name.removeprefix(f"{name}-")
            if number.isdecimal() and int(number) >= destination.identity.world_size:
                folders.append(other)
    for one in folders:
        for name in FSDP_NAMES.values():
            yield one, f"{glob.escape(stem)}-{name}.*"


def _recipe_patterns(destination: Destination) -> Iterator[tuple[Path, str]]:
    for name in _by_rank(destination, "trace"):
        yield destination.root, f"{name}.json*"


def _sfm_patterns(destination: Destination) -> Iterator[tuple[Path, str]]:
    identity = destination.identity
    yield destination.root, f"trace-rank{identity.rank}-window*.json*"
    if identity.rank == 0:
        for path in destination.root.glob("trace-rank*-window*.json*"):
            number = path.name.removeprefix("trace-rank").partition("-")[0]
            if number.isdecimal() and int(number) >= identity.world_size:
                yield destination.root, glob.escape(path.name)
    for stem, suffix in (("profiler_list", ".dat"), ("profiler_ds", ".txt")):
        for name in _by_rank(destination, stem):
            yield destination.root, f"{name}{suffix}"


def _by_rank(destination: Destination, stem: str) -> Iterator[str]:
    yield destination.by_rank(stem)
    if destination.identity.rank == 0:
        for path in destination.root.glob(f"{stem}-rank*"):
            number = path.name.removeprefix(f"{stem}-rank").partition(".")[0]
            if number.isdecimal() and int(number) >= destination.identity.world_size:
                yield f"{stem}-rank{number}"


_PATTERNS: dict[str, Patterns] = {
    "fsdp-qlora": _fsdp_qlora_patterns,
    "recipe": _recipe_patterns,
    "sfm": _sfm_patterns,
}


def move_earlier(layout: str, destination: Destination) -> list[Path]:
    """Move files that an earlier recording left under a layout's names.

    Each goes to `earlier/{time}/` in its folder, where the time is that of the newest of them.

    Returns:
        The folders that they were moved to.

    Raises:
        OSError: A file cannot be moved.
    """
    patterns = _PATTERNS.get(layout)
    found: dict[Path, set[Path]] = {}
    for folder, pattern in patterns(destination) if patterns is not None else ():
        found.setdefault(folder, set()).update(
            path for path in folder.glob(pattern) if path.is_file()
        )
    targets = []
    for folder, paths in found.items():
        if paths:
            targets.append(_target(folder, paths))
            for path in paths:
                path.replace(targets[-1] / path.name)
    return targets


def _target(folder: Path, paths: set[Path]) -> Path:
    newest_s = max(path.stat().st_mtime for path in paths)
    time = datetime.datetime.fromtimestamp(newest_s, datetime.timezone.utc)
    name = f"{time:%Y%m%dT%H%M%SZ}"
    for number in range(1, _MOST_RANKS):
        target = folder / EARLIER / (name if number == 1 else f"{name}-{number}")
        try:
            target.mkdir(parents=True)
        except FileExistsError:
            continue
        return target
    raise FileExistsError(f"{folder / EARLIER / name}: too many folders have this name")


class Placing:
    """Puts the files of one recording beside its run.

    Args:
        layout: Name of the layout; empty for none.
        words: Parts of the layout's names.
        snapshot_path: Where to put the newest memory snapshot as well, or None.
        placed: Called with the files that were put in place for a window.
    """

    def __init__(
        self,
        session: CaptureSession,
        layout: str,
        words: Mapping[str, str],
        snapshot_path: Path | None,
        placed: Callable[[list[Path]], object] | None,
    ) -> None:
        self._session = session
        self._layout = layout
        self._words = words
        self._snapshot_path = snapshot_path
        self._placed = placed
        self._newest = -1
        self._has_placed = False

    def put_window(self, window: WindowRecord) -> list[Path]:
        """Put the files of a window in place; returns them. Raises nothing."""
        destination, folder = self._destination(window.index), self._session.rank_path
        if not self._layout or folder is None or window.state not in {"complete", "partial"}:
            return []
        self._newest = max(self._newest, window.index)
        self._make_room(destination)
        files: list[Path] = []
        with self._session.contain("writing the files of the layout"):
            files = LAYOUTS[self._layout](destination, folder, window)
            self._session.copy_beside(files)
            if self._placed is not None and files:
                self._placed(files)
        return files

    def put_file(self, record: ArtifactRecord) -> None:
        """Put a file that belongs to no window in place. Raises nothing."""
        destination, folder = self._destination(), self._session.rank_path
        if folder is None:
            return
        if record.kind in LONE_FILES.get(self._layout, {}):
            self._make_room(destination)
        with self._session.contain("writing a file of the layout"):
            lone = put_lone_file(self._layout, destination, record.kind, folder / record.path)
            self._session.copy_beside([lone] if lone is not None else [])
            if record.kind == "snapshot" and self._snapshot_path is not None:
                put_snapshot(self._snapshot_path, destination, folder / record.path)

    def _make_room(self, destination: Destination) -> None:
        """Move the files of an earlier recording, before the first file of this one."""
        if self._has_placed:
            return
        self._has_placed = True
        with self._session.contain("moving the files of an earlier recording"):
            for folder in move_earlier(self._layout, destination):
                if self._session.config.announce:
                    say(f"files of an earlier recording were moved to {folder}")

    def _destination(self, window: int | None = None) -> Destination:
        journal = self._session.journal
        return Destination(
            journal.layout.root.parent if journal is not None else Path(),
            self._session.identity,
            self._words,
            tuple(self._session.overviews),
            is_newest=window is None or window >= self._newest,
        )
