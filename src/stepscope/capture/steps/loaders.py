"""What is known of the loader: its workers, what they use, and what the machine has for them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from stepscope.capture.steps.step_notes import Read
from stepscope.run.manifest import LoaderRecord
from stepscope.system import (
    available_bytes,
    private_bytes,
    shared_memory_bytes,
    usable_cpus,
)

_FIRST_NS = 50_000_000
"""After so long a time the workers of an iterator are looked at first,"""
_EVERY_NS = 1_000_000_000
"""and each time after twice as long, up to this."""
_MOST_ITEMS = 1024
_SAMPLER_TIME = "_stepscope_sampler_ns"
_MOST_WORKERS = 64
_MOST_LOADERS = 8
_Value = TypeVar("_Value", int, bool)


class LoaderWatch:
    """Notes the training's DataLoader, and how busy its workers are.

    Loaders are told apart by their datasets. That of the training is the one whose batches most
    backward passes followed, and of those without any the one that most batches came from: an
    evaluation may be seen, too, and be larger than an epoch. The thread that writes the steps calls
    `look`; the workers are read there, and once on the training thread when they are about to end.

    Args:
        note: Is given what is known, whenever it changes.

    Attributes:
        is_trained_on: Whether a backward pass followed the latest batch; for others to set.
    """

    def __init__(self, note: Callable[[LoaderRecord], None]) -> None:
        self._note = note
        self._lock = threading.Lock()
        self._loaders: list[SeenLoader] = []
        self._latest: SeenLoader | None = None
        self._part: _Same | None = None
        self._noted: SeenLoader | None = None
        self._noted_record: LoaderRecord | None = None
        self.is_trained_on = False
        self.hurry: Callable[[], object] = bool

    def see(self, *parts: Any, batch: Any = None, read: Read | None = None) -> SeenLoader | None:
        """Take notice of a loader and its iterator, or of either; called for every batch.

        Args:
            parts: The loader, its iterator, or both; anything may be passed.

        Returns:
            What is known of the loader; None if it is no DataLoader.
        """
        loader = self._latest
        if self.is_trained_on:
            self.is_trained_on = False
            if loader is not None:
                loader.trained += 1
        if self._part is None or not self._part.is_(parts[-1]):
            self._part = _Same(parts[-1])
            with self._lock:
                loader = self._latest = self._loader_of(parts)
            if loader is not None and loader.workers:
                self.hurry()
        if loader is not None:
            loader.batches += 1
            if loader.is_new and batch is not None:
                read = read or Read(batch)
            if read is not None and (loader.is_new or read.is_beside):
                with self._lock:
                    loader.take(read)
        return loader

    def look(self) -> float:
        """Sample workers whose turn it is, and note the training's loader if there is news.

        Returns:
            Seconds until the next look.
        """
        with self._lock:
            now_ns = time.monotonic_ns()
            next_ns = now_ns + _EVERY_NS
            latest = self._latest
            if latest is not None and latest.workers:
                if now_ns >= latest.last_ns + latest.every_ns:
                    latest.sample()
                next_ns = latest.last_ns + latest.every_ns
            self._note_news()
        return (next_ns - now_ns) / 1e9

    def ends(self, iterator: Any) -> None:
        """Measure the workers of an iterator a last time: its data has ended."""
        present = _worker_ids((iterator,))
        with self._lock:
            for loader in self._loaders:
                if present and loader.workers == present:
                    loader.sample()

    def _note_news(self) -> None:
        """Note the loader that the training's batches come from."""
        most = max(self._loaders, key=self._weight, default=None)
        if most is not None and (
            self._noted is None or self._weight(most) > self._weight(self._noted)
        ):
            self._noted = most
        if self._noted is not None and self._noted.record is not self._noted_record:
            self._noted_record = self._noted.record
            self._note(self._noted_record)

    def _weight(self, loader: SeenLoader) -> tuple[int, int]:
        is_latest = self.is_trained_on and loader is self._latest
        return loader.trained + is_latest, loader.batches

    def _loader_of(self, parts: Sequence[Any]) -> SeenLoader | None:
        """What is known of the loader of these parts, with its present workers; None for none."""
        for loader in self._loaders:
            if loader.part.is_(parts[-1]):
                return loader
        workers = _first(parts, int, "num_workers", "_num_workers")
        if workers is None:
            return None
        data = _data_of(parts)
        found = next((one for one in self._loaders if one.data.is_(data)), None)
        if found is None:
            found = SeenLoader(_Same(data))
            if len(self._loaders) >= _MOST_LOADERS:
                others = [one for one in self._loaders if one is not self._noted]
                self._loaders.remove(min(others, key=self._weight))
            self._loaders.append(found)
        found.begin(parts, workers)
        return found


class _Same:
    """An object to be recognised, without keeping it alive.

    An address alone would not do: that of an iterator which is gone may be that of the next one.
    """

    def __init__(self, one: Any) -> None:
        self._address = id(one)
        self._reference: weakref.ref[Any] | None = None
        with contextlib.suppress(TypeError):  # a list, say: nothing that has workers
            self._reference = weakref.ref(one)

    def is_(self, one: Any) -> bool:
        """Whether this is the same object."""
        is_alive = self._reference is None or self._reference() is one
        return is_alive and self._address == id(one)


class SeenLoader:
    """One loader: what is known of it, and what its workers have used.

    Attributes:
        batches: Number of batches that came from it.
        trained: Number of those that a backward pass followed before the next batch came.
        is_new: Whether it is not known yet how large its batches are.
    """

    def __init__(self, data: _Same) -> None:
        self.data = data
        self.part = _Same(None)
        self.record = LoaderRecord()
        self.batches = self.trained = 0
        self.is_new = True
        self.workers: tuple[int, ...] = ()
        self.last_ns = 0
        self.every_ns = _FIRST_NS
        self._times: dict[int, tuple[int, int]] = {}
        self._used_ns = 0
        self._watched_ns = 0

    def begin(self, parts: Sequence[Any], workers: int) -> None:
        """Take notice of a new loader over this data, or of a new iterator of it."""
        self.part = _Same(parts[-1])
        before = self.record
        if not self.batches or before.workers != workers:
            self._used_ns = self._watched_ns = 0
            before = LoaderRecord(cpus=usable_cpus(), local_ranks=_local_ranks())
            self.is_new = True
        present = _worker_ids(parts)
        is_new = bool(present) and present != self.workers
        self.record = dataclasses.replace(
            before,
            workers=workers,
            prefetch_factor=_first(parts, int, "prefetch_factor", "_prefetch_factor"),
            is_persistent=_first(parts, bool, "persistent_workers", "_persistent_workers"),
            starts=before.starts + is_new,
            is_iterable=_is_iterable(parts),
        )
        self.workers = present
        self._times = {}
        self.last_ns = 0  # to be read at the next look
        self.every_ns = _FIRST_NS

    def take(self, read: Read) -> None:
        """Note how a batch was read, and with the first one how large it is."""
        if self.is_new and read.batch is not None:
            self.is_new = False
            size, tensors = _size_of(read.batch)
            self.record = dataclasses.replace(
                self.record,
                batch_bytes=size,
                batch_tensors=tensors,
                shared_memory_bytes=shared_memory_bytes(),
                memory_bytes=available_bytes(),
                worker_bytes=private_bytes(self.workers[0]) if self.workers else None,
            )
        if read.is_beside and not self.workers:
            self._used_ns += read.cpu_ns
            self._watched_ns += read.duration_ns
            self._set_share()
        if read.is_beside and not self.record.is_beside:
            self.record = dataclasses.replace(self.record, is_beside=True)

    def sample(self) -> None:
        """Add what the workers have used since the last time; the first time only begins."""
        now_ns = time.monotonic_ns()
        times = _times_of(self.workers)
        if not self._times:
            self._times, self.last_ns = times, now_ns
            return
        both = times.keys() & self._times.keys()
        self._used_ns += sum(times[pid][0] - self._times[pid][0] for pid in both)
        self._watched_ns += len(both) * (now_ns - self.last_ns)
        # A worker that waits for a CPU neither computes nor waits for storage.
        self._watched_ns -= sum(times[pid][1] - self._times[pid][1] for pid in both)
        self._times, self.last_ns = times, now_ns
        self.every_ns = min(_EVERY_NS, 2 * self.every_ns)
        self._set_share()

    def _set_share(self) -> None:
        if self._watched_ns > 0:
            busy = min(1.0, self._used_ns / self._watched_ns)
            self.record = dataclasses.replace(self.record, worker_cpu_share=round(busy, 3))


def has_workers(iterator: Any) -> bool:
    """Whether this is a DataLoader's iterator with worker processes."""
    return bool(getattr(iterator, "_workers", None))


def kept_iterator(loader: Any) -> Any:
    """The iterator that a DataLoader with persistent workers keeps; None for none."""
    return getattr(loader, "_iterator", None)


def time_first_indices(iterator: Any) -> None:
    """Time how long a DataLoader's iterator waits for the first indices of its sampler.

    Samplers do their work for an epoch when they are asked for the first time.
    """
    own = vars(iterator)
    if "_next_index" in own or "_sampler_iter" not in own or iterator._num_yielded:
        return
    reference = weakref.ref(iterator)  # not a cycle: the iterator ends workers when it is dropped

    def first_indices() -> Any:
        present: Any = reference()
        vars(present).pop("_next_index", None)
        started_ns = time.perf_counter_ns()
        try:
            return present._next_index()
        finally:
            setattr(present, _SAMPLER_TIME, time.perf_counter_ns() - started_ns)

    iterator._next_index = first_indices


def taken_sampler_time(iterator: Any) -> int:
    """The time that `time_first_indices` measured, once; 0 for none."""
    found: int = vars(iterator).pop(_SAMPLER_TIME, 0)
    return found


def _worker_ids(parts: Sequence[Any]) -> tuple[int, ...]:
    processes = next((p for part in parts if (p := getattr(part, "_workers", None))), ())
    pids = (getattr(process, "pid", None) for process in processes[:_MOST_WORKERS])
    return tuple(pid for pid in pids if isinstance(pid, int))


def _size_of(batch: Any) -> tuple[int | None, int | None]:
    """Size and number of the tensors in a batch; None where it holds what is not understood."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None, None
    size = tensors = seen = 0
    left = [batch]
    while left:
        one = left.pop()
        seen += 1
        if seen > _MOST_ITEMS:
            return None, None
        if isinstance(one, torch.Tensor):
            size += one.nbytes
            tensors += 1
        elif isinstance(one, dict):
            left += one.values()
        elif isinstance(one, (list, tuple)):
            left += one
        elif isinstance(one, (str, bytes)):
            size += len(one)
        elif one is not None and not isinstance(one, (int, float)):
            return None, None
    return size, tensors


def _data_of(parts: Sequence[Any]) -> Any:
    """The dataset of the first part that has one; the first part where none has."""
    data = (getattr(part, name, None) for part in parts for name in ("_dataset", "dataset"))
    return next((one for one in data if one is not None), parts[0])


def _is_iterable(parts: Sequence[Any]) -> bool | None:
    """Whether the dataset is an `IterableDataset`; None if torch's loaders are not imported."""
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is None:
        return None
    return isinstance(_data_of(parts), torch_data.IterableDataset)


def _local_ranks() -> int:
    try:
        return max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    except ValueError:
        return 1


def _first(parts: Sequence[Any], kind: type[_Value], *names: str) -> _Value | None:
    """The first attribute of these names that is of a type."""
    values = (getattr(part, name, None) for part in parts for name in names)
    return next((value for value in values if type(value) is kind), None)


def _times_of(workers: Sequence[int]) -> dict[int, tuple[int, int]]:
    """How long each process has run on a CPU, and waited for one; without those that do not say."""
    found = {}
    for pid in workers:
        with contextlib.suppress(OSError, ValueError, IndexError):
            ran, queued = Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[:2]
            found[pid] = int(ran), int(queued)
    return found
