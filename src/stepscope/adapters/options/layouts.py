"""Files under the names that the frameworks' guides promise, beside the run's directory.

They are hard links to the files of the run where the disk allows it, and copies otherwise, so that
they cost no room. Each is put in place when its window is finished.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stepscope.capture.together.ranks import RankIdentity
from stepscope.run.files import replacing, write_atomically
from stepscope.run.manifest import WindowRecord

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._+=@-]+")


@dataclass(frozen=True)
class Destination:
    """What names are made of.

    Attributes:
        root: The output folder.
        identity: Who this rank is.
        words: What the script calls its model ("model_name") and its training ("train_type"), and
            what else a layout's names are made of.
        overviews: What adds its own words to an overview of memory.
        is_newest: Whether no later window has been put in place: files of several windows are made
            at the same time, and names that they share are the newest's.
    """

    root: Path
    identity: RankIdentity = field(default_factory=RankIdentity)
    words: Mapping[str, str] = field(default_factory=dict)
    overviews: tuple[Callable[[], str], ...] = ()
    is_newest: bool = True

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


Layout = Callable[[Destination, Path, WindowRecord], list[Path]]
"""Puts a finished window's files in place: the destination, the rank's directory, the window."""


def fsdp_qlora(destination: Destination, rank_directory: Path, window: WindowRecord) -> list[Path]:
    """`{model}_{train_type}-{local_rank}/`, with the newest window's four files."""
    if not destination.is_newest:
        return []
    model, train_type = destination.model, destination.train_type
    folder = destination.root / f"{model}_{train_type}-{destination.identity.local_rank}"
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
            put.append(put_file(source, target))
    return put


def recipe(destination: Destination, rank_directory: Path, window: WindowRecord) -> list[Path]:
    """`trace.json`: the newest window's trace."""
    source = _files(rank_directory, window).get("trace")
    if source is None or not destination.is_newest:
        return []
    suffix = source.name.partition(".")[2]
    return [put_file(source, destination.root / f"{destination.by_rank('trace')}.{suffix}")]


def sfm(destination: Destination, rank_directory: Path, window: WindowRecord) -> list[Path]:
    """One trace for each window, and `profiler_list.dat` of the newest."""
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
    """`iteration_{step}/{leaf}/rank{rank}_trace.json[.gz]`, steps counted as the trainer does."""
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
    """Steps done when the window ended, with those before a resumption."""
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
"""By layout and kind: names that files of no window have beside the run; empty for their own."""


def put_lone_file(layout: str, destination: Destination, kind: str, source: Path) -> Path | None:
    """Put a file that belongs to no window where the layout promises it; None if it does not."""
    name = LONE_FILES.get(layout, {}).get(kind)
    if name is None:
        return None
    wanted = Path(name or source.name)
    stem = wanted.stem.removesuffix(f"_rank{destination.identity.rank}")
    return put_file(source, destination.root / f"{destination.by_rank(stem)}{wanted.suffix}")


def put_snapshot(target: Path, destination: Destination, source: Path) -> Path:
    """Put a memory snapshot under a path of the user's; ranks after the first add their number."""
    return put_file(source, target.with_name(f"{destination.by_rank(target.stem)}{target.suffix}"))


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


def put_file(source: Path, target: Path) -> Path:
    """Put a file under another name as well, at no cost where the disk has hard links."""
    with replacing(target) as temporary:
        try:
            temporary.hardlink_to(source)
        except OSError:
            shutil.copyfile(source, temporary)
    return target


def _plain(text: str, otherwise: str) -> str:
    """A text as a part of a file's name."""
    return _NOT_IN_NAMES.sub("_", text).strip("._") or otherwise
