"""The interface of a source of GPU values, for all vendors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from stepscope.monitor.columns import Value
from stepscope.run.metrics import GpuDescription


class GpuSource(Protocol):
    """GPUs of one vendor. Nothing here raises: what cannot be read is noted and left out."""

    @property
    def gpus(self) -> Sequence[GpuDescription]:
        """The sampled GPUs, in the order of `read`."""

    def use(self, uuid: str) -> bool:
        """Sample only this one from now on; False, without a change, if it is not among them."""

    def read(self, wanted: Collection[str], pids: Collection[int]) -> list[Mapping[str, Value]]:
        """The values of each GPU by column; missing columns have no value.

        Args:
            wanted: Names of columns.
            pids: The watched processes.
        """

    def close(self) -> None:
        """Release the driver."""


def same_uuid(one: str, other: str) -> bool:
    """Whether two spellings of a UUID mean the same GPU: torch omits NVML's prefix."""
    return _bare(one) == _bare(other) != ""


def _bare(uuid: str) -> str:
    text = uuid.strip().lower()
    for prefix in ("gpu-", "mig-"):
        text = text.removeprefix(prefix)
    return text
