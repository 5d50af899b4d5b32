"""The calls of a rank that wait by themselves: single operations and coalesced groups.

Definitions
    Call: what a rank enters and leaves at once. Either a single operation, or a coalesced group
    (`batch_isend_irecv`, a coalescing manager, an `all_gather` of uneven tensors). Torch records
    the operations of a group first, without states, and then an entry of the group, which has the
    state of them all.
    A group without an entry of its own is one that the rank is still calling, if nothing follows
    it in its process group.
    Lane: calls that run one after the other on the GPU: of a process group, all but the single
    sends and receives, which have a lane for each peer.
    Head: of a lane's calls, the first that is not completed. Those behind it have not begun.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from stepscope.fleet.hangs.dump import COMPLETED, SCHEDULED, Dump, Entry, Group

Lane = tuple[Group, int | None]


@dataclass(frozen=True, slots=True)
class Call:
    """A call.

    Attributes:
        group: Its process group, without the description.
        entry: The single operation, or the entry of the coalesced group; where that is not
            recorded, its last operation.
        parts: The operations of a coalesced group, in order; empty for a single operation.
        is_whole: Whether none of its parts was overwritten.
        skipped: How many groups of sends and receives were counted as collectives before it.
    """

    rank: int
    group: Group
    entry: Entry
    parts: tuple[Entry, ...]
    is_completed: bool
    is_whole: bool = True
    is_coalesced: bool = False
    skipped: int = 0

    @property
    def has_begun(self) -> bool:
        """Whether it is recorded that the GPU has begun it."""
        return self.is_completed or self.entry.started_ns is not None

    @property
    def has_arguments(self) -> bool:
        """Whether all that it was called with is recorded."""
        return not self.is_coalesced or (self.is_whole and bool(self.parts))

    @property
    def messages(self) -> tuple[Entry, ...]:
        """The sends and receives in it."""
        if not self.parts:
            return (self.entry,) if self.entry.peer is not None else ()
        return tuple(one for one in self.parts if one.peer is not None)

    @property
    def collective(self) -> int | None:
        """Its number among the collectives of its process group; None: it is none."""
        inner = [one for one in self.parts if not one.is_p2p]
        if inner:
            return inner[0].sequence - self.skipped
        is_unknown = self.is_coalesced and not self.parts and not self.is_whole
        if self.entry.is_p2p or self.messages or is_unknown:
            return None
        return self.entry.sequence - self.skipped

    @property
    def lane(self) -> Lane:
        """Where it runs."""
        return self.group, None if self.is_coalesced else self.entry.peer

    @property
    def where(self) -> str:
        """The line that made it."""
        return self.entry.where or next((one.where for one in self.parts if one.where), "")


def calls_of(dump: Dump, group_of: Callable[[Group], Group]) -> list[Call]:
    """The calls of a rank, in order.

    Args:
        group_of: The process group without its description, with its ranks.
    """
    groups = {group: group_of(group) for group in {entry.group for entry in dump.entries}}
    pending: dict[Group, list[Entry]] = defaultdict(list)
    calls: list[Call] = []

    def add(parts: Sequence[Entry], end: Entry | None, *, is_last: bool = False) -> None:
        first, entry = (parts[0] if parts else end), end or parts[-1]
        is_coalesced = end is not None or len(parts) > 1
        # The entry of a completed group may have been left out.
        is_over = end is None and is_coalesced and (dump.is_filtered or not is_last)
        if is_unclear(dump, entry) and end is None:
            return
        calls.append(
            Call(
                rank=dump.rank,
                group=groups[entry.group],
                entry=entry,
                parts=tuple(parts) if is_coalesced else (),
                is_completed=is_over or entry.state == COMPLETED,
                is_whole=dump.is_from_start or first is None or first.place > 0,
                is_coalesced=is_coalesced,
            )
        )

    for entry in dump.entries:
        waiting = pending[entry.group]
        is_inside = entry.ends_group or entry.state == SCHEDULED
        if waiting and not (is_inside and waiting[-1].numbers == entry.numbers):
            add(waiting, None)
            waiting.clear()
        if entry.ends_group:
            add(tuple(waiting), entry)
            waiting.clear()
        elif entry.state == SCHEDULED:
            waiting.append(entry)
        else:
            add([entry], None)
    for waiting in pending.values():
        if waiting:
            add(waiting, None, is_last=True)
    calls.sort(key=lambda call: call.entry.place)
    return _as_counted_since_2_6(calls) if dump.is_from_start else calls


def _as_counted_since_2_6(calls: list[Call]) -> list[Call]:
    """With the numbers of collectives as newer versions count them.

    Before torch 2.6, a coalesced group of sends and receives counts as a collective, and ranks
    need not have as many of them.
    """
    last: dict[Group, int] = defaultdict(int)
    skipped: dict[Group, int] = defaultdict(int)
    found = []
    for call in calls:
        number = call.entry.numbers[0]
        if call.is_coalesced and number > last[call.group] and call.collective is None:
            skipped[call.group] += 1
        last[call.group] = number
        has_skipped = skipped.get(call.group)
        found.append(replace(call, skipped=has_skipped) if has_skipped else call)
    return found


def is_unclear(dump: Dump, entry: Entry) -> bool:
    """Whether an entry may be of a coalesced group that was completed and left out."""
    return dump.is_filtered and entry.is_p2p and entry.state == SCHEDULED


def heads_of(calls: Sequence[Call]) -> list[Call]:
    """The calls in which a rank waits, in the order of the calls."""
    heads: dict[Lane, Call] = {}
    for call in calls:
        if not call.is_completed:
            heads.setdefault(call.lane, call)
    return list(heads.values())
