"""Files under the names that the frameworks' guides promise, beside the run's directory.

They are hard links to the files of the run where the disk allows it, and copies otherwise, so that
they cost no room. Each is put in place when its window is finished.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stepscope.capture.ranks import RankIdentity
from stepscope.run.files import replacing, write_atomically
from stepscope.run.manifest import WindowRecord

PROFILER_LIST = "profiler_list.dat"
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._+=@-]+")


@dataclass(frozen=True)
class Place:
    """What names are made of.

    Attributes:
        root: The output folder.
        identity: Who this rank is.
        words: What the script calls its model ("model_name") and its training ("train_type").
    """

    root: Path
    identity: RankIdentity = field(default_factory=RankIdentity)
    words: Mapping[str, str] = field(default_factory=dict)

    @property
    def model(self) -> str:
        """The model's own name, without the organisation or folder before it."""
        return _plain(self.words.get("model_name", "").rstrip("/").rpartition("/")[2], "model")

    @property
    def train_type(self) -> str:
        """The kind of training."""
        return _plain(self.words.get("train_type", ""), "train")

    def by_rank(self, stem: str) -> str:
        """A name that ranks do not share: the first rank has the plain one."""
        rank = self.identity.rank
        return stem if rank == 0 else f"{stem}-rank{rank}"


Layout = Callable[[Place, Path, WindowRecord], list[Path]]
"""Puts a finished window's files in place: the place, the rank's directory, the window."""


def fsdp_qlora(place: Place, rank_directory: Path, window: WindowRecord) -> list[Path]:
    """`{model}_{train_type}-{local_rank}/`, with the newest window's four files."""
    model, train_type = place.model, place.train_type
    folder = place.root / f"{model}_{train_type}-{place.identity.local_rank}"
    names = {
        "trace": "chrome-trace",
        "key_averages": "key_averages",
        "memory_timeline": "memory-timeline",
        "stacks": "stacks",
    }
    put = []
    for kind, source in _files(rank_directory, window).items():
        if kind in names:
            suffix = source.name.partition(".")[2]
            target = folder / f"{model}-{train_type}-{names[kind]}.{suffix}"
            put.append(_put(source, target))
    return put


def recipe(place: Place, rank_directory: Path, window: WindowRecord) -> list[Path]:
    """`trace.json`: the newest window's trace."""
    source = _files(rank_directory, window).get("trace")
    if source is None:
        return []
    suffix = source.name.partition(".")[2]
    return [_put(source, place.root / f"{place.by_rank('trace')}.{suffix}")]


def sfm(place: Place, rank_directory: Path, window: WindowRecord) -> list[Path]:
    """One trace for each window, and `profiler_list.dat` of the newest."""
    files = _files(rank_directory, window)
    put = []
    if "trace" in files:
        suffix = files["trace"].name.partition(".")[2]
        name = f"trace-rank{place.identity.rank}-window{window.index}.{suffix}"
        put.append(_put(files["trace"], place.root / name))
    if "key_averages" in files:
        target = place.root / f"{place.by_rank('profiler_list')}.dat"
        table = files["key_averages"].read_text(encoding="utf-8")
        write_atomically(target, f"{table}\n{memory_overview()}".encode())
        put.append(target)
    return put


LAYOUTS: dict[str, Layout] = {"fsdp-qlora": fsdp_qlora, "recipe": recipe, "sfm": sfm}


def memory_overview() -> str:
    """This process's memory now, on the host and on each GPU that it uses, as text."""
    import psutil
    import torch

    own = psutil.Process().memory_info()
    lines = ["Memory overview", "", f"Host, resident: {own.rss / 1024**3:.2f} GiB"]
    with contextlib.suppress(ImportError):  # Windows has no such module
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_BYTES
        lines.append(f"Host, resident at most: {peak / 1024**3:.2f} GiB")
    if not torch.cuda.is_initialized():
        lines.append("GPU: none in use in this process")
        return "\n".join(lines) + "\n"
    for device in range(torch.cuda.device_count()):
        if torch.cuda.memory_reserved(device):
            lines += ["", f"GPU {device}", torch.cuda.memory_summary(device)]
    return "\n".join(lines) + "\n"


_MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024
"""What getrusage counts a process's greatest size in."""


def _files(rank_directory: Path, window: WindowRecord) -> dict[str, Path]:
    """The window's files, one for each kind: the first."""
    found: dict[str, Path] = {}
    for artifact in window.artifacts:
        path = rank_directory / artifact.path
        if not artifact.problem and artifact.bytes and path.is_file():
            found.setdefault(artifact.kind, path)
    return found


def _put(source: Path, target: Path) -> Path:
    with replacing(target) as temporary:
        try:
            temporary.hardlink_to(source)
        except OSError:
            shutil.copyfile(source, temporary)
    return target


def _plain(text: str, otherwise: str) -> str:
    """A text as a part of a file's name."""
    return _NOT_IN_NAMES.sub("_", text).strip("._") or otherwise
