"""Which rank this process is, which ranks record, and its one profiler."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stepscope.errors import UsageError

RanksOption = str | Sequence[int]

NOBODY = (1 << 62,)
"""Value of `ranks` for captures whose windows come from elsewhere: no rank records."""

_EVERY = re.compile(r"every:([1-9]\d*)")
_LIST = re.compile(r"\d+([,\s]+\d+)*")


@dataclass(frozen=True)
class RankIdentity:
    """The position of a process in its job.

    Attributes:
        rank: Global rank, from 0.
        local_rank: Rank on its node, from 0.
        node: Number of its node, from 0; None if the launcher does not say.
    """

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    node: int | None = None


def identify() -> RankIdentity:
    """Find the process's rank from torch.distributed if it is up, else from the launcher.

    The variables of torchrun come first, then those of Slurm, Open MPI and PMI. A process that none
    of them describes is rank 0 of 1. Invalid values are ignored.
    """
    from torch import distributed

    rank = _first("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
    world_size = _first("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
    local_rank = _first(
        "LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"
    )
    if distributed.is_available() and distributed.is_initialized():
        rank, world_size = distributed.get_rank(), distributed.get_world_size()
    if rank is None or world_size is None or not 0 <= rank < world_size:
        return RankIdentity()
    node = _first("GROUP_RANK", "SLURM_NODEID", "PMIX_NODEID")
    return RankIdentity(rank, rank if local_rank is None else local_rank, world_size, node)


def parse_ranks(option: RanksOption) -> RanksOption:
    """Check the option `ranks` and normalise it to a word or a tuple of ranks.

    Raises:
        UsageError: The option has none of the forms that the message lists.
    """
    if isinstance(option, str):
        text = option.strip()
        if text in {"all", "node-first"} or _EVERY.fullmatch(text):
            return text
        if _LIST.fullmatch(text):
            return tuple(int(word) for word in re.split(r"[,\s]+", text))
    ranks = option if isinstance(option, (list, tuple, range)) else ()
    if ranks and all(type(rank) is int and rank >= 0 for rank in ranks):
        return tuple(ranks)
    raise UsageError(
        f"ranks={option!r} is not understood: give 'all', 'node-first', 'every:8', "
        "a rank such as '0', or a list such as [0, 1]"
    )


def records(option: RanksOption, identity: RankIdentity) -> bool:
    """Whether the (parsed) option selects this process."""
    if isinstance(option, str):
        if option == "all":
            return True
        if option == "node-first":
            return identity.local_rank == 0
        match = _EVERY.fullmatch(option)
        return match is not None and identity.rank % int(match.group(1)) == 0
    return identity.rank in option


def first_to_record(option: RanksOption, identity: RankIdentity) -> int:
    """The lowest rank that the (parsed) option selects; -1 if the job has none of them."""
    if isinstance(option, str):
        return 0
    return min((rank for rank in option if rank < identity.world_size), default=-1)


def _first(*variables: str) -> int | None:
    """The first of these variables of the environment that is a number."""
    values = (os.environ.get(name, "") for name in variables)
    return next((int(value) for value in values if value.isdecimal()), None)


class NestedProfilerError(UsageError, RuntimeError):
    """A second profiler in a process that already has one: torch supports only one at a time."""


class ProcessClaim:
    """The claim of one object on the process's profiling. There is one claim per process.

    It is shared by the whole process on purpose: it stands for something that exists only once. A
    fork has none: its parent's owner is asked to forget what it was recording.
    """

    _lock = threading.Lock()
    _owner: Any = None

    @classmethod
    def take(cls, owner: object) -> bool:
        """Claim the process; False if another owner holds it."""
        with cls._lock:
            if cls._owner not in (None, owner):
                return False
            cls._owner = owner
            return True

    @classmethod
    def holder(cls) -> Any:
        """The object that holds the claim, or None."""
        return cls._owner

    @classmethod
    def give_back(cls, owner: object) -> None:
        """Release the claim; does nothing if `owner` does not hold it."""
        with cls._lock:
            if cls._owner is owner:
                cls._owner = None

    @classmethod
    def _after_fork(cls) -> None:
        """In a fork: the lock may have been held, by a thread that does not exist here."""
        owner, cls._owner, cls._lock = cls._owner, None, threading.Lock()
        if owner is not None:
            owner.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=ProcessClaim._after_fork)
