"""What GPUs of all vendors have in common: which are sampled, and the ways to read each.

Nothing here raises: what cannot be read is noted and left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from stepscope.errors import UsageError
from stepscope.monitor.columns import Value, same_uuid
from stepscope.monitor.notes import Notes
from stepscope.run.figures import describe_error
from stepscope.run.metrics import GpuDescription

_Device = TypeVar("_Device")


@dataclass(frozen=True)
class Reader:
    """A way to read some columns; for each column, the first way in the list that works is used."""

    columns: tuple[str, ...]
    read: Callable[[], Mapping[str, Value]]

    @staticmethod
    def of_one(column: str, read: Callable[[], Value]) -> Reader:
        """A way to read a single column."""
        return Reader((column,), lambda: {column: read()})


class Gpu:
    """One GPU, or a part of one, with the ways to read it that still work.

    Attributes:
        pids: The watched processes.
        reasons: Why a column could not be read.
    """

    def __init__(self, description: GpuDescription) -> None:
        self.description = description
        self.pids: Collection[int] = ()
        self.reasons: dict[str, str] = {}
        self._noted: set[tuple[str, str]] = set()
        self._readers = self.readers()
        self._offered = {name for reader in self._readers for name in reader.columns}

    def readers(self) -> list[Reader]:
        """All ways to read it."""
        raise NotImplementedError

    def explain_error(self, error: Exception) -> tuple[str, bool]:
        """Why a way to read failed, in words, and whether it need not be tried again."""
        return describe_error(error), True

    def close(self) -> None:
        """Release what the driver holds."""

    def read(
        self, wanted: Collection[str], pids: Collection[int], notes: Notes
    ) -> Mapping[str, Value]:
        """The values by column."""
        self.pids = pids
        values: dict[str, Value] = {
            "index": self.description.index,
            "name": self.description.name or None,
            "uuid": self.description.uuid or None,
        }
        for reader in tuple(self._readers):
            missing = [name for name in reader.columns if name in wanted and name not in values]
            if not missing:
                continue
            try:
                found = reader.read()
            except Exception as error:  # noqa: BLE001 - a driver's quirks must not end the sampler
                why, is_final = self.explain_error(error)
                self.reasons.update(dict.fromkeys(reader.columns, why))
                if is_final:
                    self._readers.remove(reader)
                continue
            values.update((name, found[name]) for name in missing if name in found)
        for name in wanted:
            why = self.reasons.get(name, "the driver gives no value")
            is_missing = name in self._offered and name not in values
            if is_missing and (name, why) not in self._noted:
                self._noted.add((name, why))
                notes.add(f"{name} of GPU {self.description.index}", why)
        return values


def visible_devices(
    text: str, find: Callable[[str], list[_Device]], notes: Notes, variable: str
) -> list[_Device]:
    """The devices in a variable's list, which ends at the first entry that is none, as in CUDA."""
    found: list[_Device] = []
    for word in (part.strip() for part in text.split(",")):
        devices = find(word)
        if not devices:
            if word not in {"", "-1", "NoDevFiles"}:
                notes.add(f"{variable}={text}", f"{word!r} is not a GPU of this machine")
            break
        found += devices
    return found


def chosen_devices(
    names: Iterable[str], find: Callable[[str], list[_Device]], known: Iterable[int]
) -> list[_Device]:
    """The devices that the user names; `known` are the indices of all."""
    found: list[_Device] = []
    for word in names:
        devices = find(word)
        if not devices:
            raise UsageError(
                f"--id: {word!r} is not a GPU of this machine, which has the indices "
                f"{', '.join(map(str, known)) or '(none)'}"
            )
        found += devices
    return found


class GpuSource:
    """The sampled GPUs of one vendor."""

    def __init__(self, gpus: Sequence[Gpu], notes: Notes, release: Callable[[], object]) -> None:
        self._gpus = list(gpus)
        self._notes = notes
        self._release = release

    @property
    def gpus(self) -> Sequence[GpuDescription]:
        """The sampled GPUs, in the order of `read`."""
        return [gpu.description for gpu in self._gpus]

    def use(self, uuid: str) -> bool:
        """Sample only this one from now on; False, without a change, if it is not among them."""
        fitting = [gpu for gpu in self._gpus if same_uuid(gpu.description.uuid, uuid)]
        if fitting:
            for gpu in self._gpus:
                if gpu not in fitting:
                    gpu.close()
            self._gpus = fitting
        return bool(fitting)

    def read(self, wanted: Collection[str], pids: Collection[int]) -> list[Mapping[str, Value]]:
        """The values of each GPU by column; missing columns have no value."""
        return [gpu.read(wanted, pids, self._notes) for gpu in self._gpus]

    def close(self) -> None:
        """Release the driver."""
        for gpu in self._gpus:
            gpu.close()
        self._release()
