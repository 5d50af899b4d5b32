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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.capture.messages import print_lines
from stepscope.run.files import numbered, replacing, write_atomically
from stepscope.run.manifest import ArtifactRecord, WindowRecord
from stepscope.system import peak_resident_bytes, resident_bytes

if TYPE_CHECKING:
    from stepscope.capture.session import CaptureSession

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._+=@-]+")
EARLIER = "earlier"
"""Folder that the files of an earlier recording are moved to, beside the new ones."""


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


_ANY_RANK = {
    "rank": r"(\d+)",
    "local": r"(\d+)",
    "of_rank": r"-rank(\d+)",
    "window": r"\d+",
    "suffix": ".*",
}
"""The fields of a name that differ between ranks and windows, as regular expressions."""


class Placing:
    """Puts the files of one recording beside its run.

    Args:
        layout: Name of the layout; empty for none.
        words: The script's name for its model ("model_name") and its training ("train_type"), and
            other parts of a layout's names.
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
        self._root = folder.parent.parent
        self._layout = layout
        self._words = words
        self._snapshot_path = snapshot_path
        self._placed = placed
        self._newest = -1
        self._has_placed = False
        model = words.get("model_name", "").rstrip("/").rpartition("/")[2]
        rank = session.identity.rank
        self._fields = {
            "model": _plain(model, "model"),
            "training": _plain(words.get("train_type", ""), "train"),
            "rank": str(rank),
            "local": str(session.identity.local_rank),
            # The first rank has the plain name.
            "of_rank": "" if rank == 0 else f"-rank{rank}",
        }

    def put_window(self, window: WindowRecord) -> list[Path]:
        """Put the files of a finished window in place; returns them. Raises nothing.

        Files of several windows are made at the same time, and names that they share belong to the
        newest of those that have been put in place.
        """
        put: list[Path] = []
        if not self._layout or window.state not in {"complete", "partial"}:
            return put
        self._newest = max(self._newest, window.index)
        self.move_earlier()
        with self._session.contain("writing the files of the layout"):
            last = window.last_step
            if last is None:
                last = (window.first_step or 0) - 1
            fields = {
                **self._fields,
                "window": str(window.index),
                # Steps done when the window ended, with those before a resumption.
                "done": str(int(self._words.get("steps_before", "0")) + last + 1),
                "leaf": self._words.get("leaf", ""),
                "ns": str(time.time_ns()),
            }
            sources: dict[str, Path] = {}
            for artifact in window.artifacts:
                path = self._folder / artifact.path
                if not artifact.problem and artifact.bytes and path.is_file():
                    sources.setdefault(artifact.kind, path)
            for file in LAYOUTS[self._layout]:
                source = None if file.is_lone else sources.get(file.kind)
                if source is None or (file.is_shared and window.index != self._newest):
                    continue
                suffix = source.name.partition(".")[2]
                target = self._root / file.path.format(**fields, suffix=suffix)
                if file.with_memory:
                    more = "".join(f"\n{overview()}" for overview in self._session.overviews)
                    text = f"{source.read_text(encoding='utf-8')}\n{memory_overview()}{more}"
                    write_atomically(target, text.encode())
                else:
                    put_file(source, target)
                put.append(target)
            if self._placed is not None and put:
                self._placed(put)
        return put

    def put_file(self, record: ArtifactRecord) -> None:
        """Put a file that belongs to no window in place. Raises nothing."""
        source = self._folder / record.path
        for file in LAYOUTS.get(self._layout, ()):
            if file.is_lone and file.kind == record.kind:
                self.move_earlier()
                with self._session.contain("writing a file of the layout"):
                    stem = source.stem.removesuffix(f"_rank{self._session.identity.rank}")
                    suffix = source.suffix.lstrip(".")
                    path = file.path.format(**self._fields, stem=stem, suffix=suffix)
                    put_file(source, self._root / path)
        shown = self._snapshot_path
        if record.kind == "snapshot" and shown is not None:
            with self._session.contain("writing the memory snapshot"):
                of_rank = self._fields["of_rank"]
                put_file(source, shown.with_name(f"{shown.stem}{of_rank}{shown.suffix}"))

    def move_earlier(self) -> None:
        """Move files that an earlier recording left, before the first file of this one.

        Each goes to `earlier/{time}/` in its folder, where the time is that of the newest of them.
        The first rank also moves those of ranks that the job does not have.
        """
        if self._has_placed:
            return
        self._has_placed = True
        with self._session.contain("moving the files of an earlier recording"):
            found: dict[Path, set[Path]] = {}
            for path in self._earlier_files():
                found.setdefault(path.parent, set()).add(path)
            for folder, paths in found.items():
                newest_s = max(path.stat().st_mtime for path in paths)
                moment = datetime.datetime.fromtimestamp(newest_s, datetime.timezone.utc)
                for target in numbered(folder / EARLIER / f"{moment:%Y%m%dT%H%M%SZ}"):
                    with contextlib.suppress(FileExistsError):
                        target.mkdir(parents=True)
                        break
                for path in paths:
                    path.replace(target / path.name)
                if self._session.config.announce:
                    # Relative as it was given, like the files that take their place.
                    shown = Path(self._session.config.output_dir) / target.relative_to(self._root)
                    print_lines(f"files of an earlier recording were moved to {shown}")

    def _earlier_files(self) -> Iterator[Path]:
        plain = {name: re.escape(text) for name, text in self._fields.items()}
        for file in LAYOUTS.get(self._layout, ()):
            if "{done}" in file.path or "{stem}" in file.path:
                continue  # no recording has the names of another
            own = {name: glob.escape(text) for name, text in self._fields.items()}
            own |= {"window": "*", "suffix": "json*" if file.kind == "trace" else "*"}
            yield from filter(Path.is_file, self._root.glob(file.path.format(**own)))
            if self._session.identity.rank:
                continue
            shape = re.escape(file.path)
            for name, text in {**plain, **_ANY_RANK}.items():
                shape = shape.replace(re.escape(f"{{{name}}}"), text)
            others = own | {"rank": "*", "local": "*", "of_rank": "-rank*"}
            for path in self._root.glob(file.path.format(**others)):
                found = re.fullmatch(shape, path.relative_to(self._root).as_posix())
                if found is None or not path.is_file():
                    continue
                if int(found[1]) >= self._session.identity.world_size:
                    yield path


def memory_overview() -> str:
    """The memory of this process, on the host and on each GPU that it uses, as text."""
    import torch

    lines = ["Memory overview", ""]
    for name, used in (("resident", resident_bytes()), ("peak resident", peak_resident_bytes())):
        if used is not None:
            lines.append(f"Host, {name}: {used / 1024**3:.2f} GiB")
    if not torch.cuda.is_initialized():
        lines.append("GPU: none in use in this process")
        return "\n".join(lines) + "\n"
    for device in range(torch.cuda.device_count()):
        if torch.cuda.memory_reserved(device):
            lines += ["", f"GPU {device}", torch.cuda.memory_summary(device)]
    return "\n".join(lines) + "\n"


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
