"""What each rank called, and which calls of different ranks are the same operation.

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
    Collectives are the same one if process group (name and ranks) and number agree.
    A message is a send and its receive: of one rank to another in a process group, the first send
    belongs to the first receive, the second to the second, and so on. Its number counts them; the
    recorder's own numbers count all messages of a rank together.
    Where the beginning of a record was overwritten, its sends and receives are counted from
    collectives that both ranks recorded; where there are none, from the last messages that both
    completed. The latter leaves it open which ones belong together if they were coalesced: such
    messages are uncertain.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stepscope.fleet.hangs.dump import COMPLETED, SCHEDULED, Dump, Elements, Entry, Group

Lane = tuple[Group, int | None]
_MOST_ANCHORS = 64


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


@dataclass(frozen=True, slots=True)
class Key:
    """An operation, as all its members know it.

    Attributes:
        ends: Sender and receiver of a message, as ranks of the job; None for a collective.
    """

    group: Group
    sequence: int
    ends: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """What a rank does in an operation: the call in which it is, and its entry there."""

    call: Call
    entry: Entry


@dataclass
class Operations:
    """The operations of a job.

    Attributes:
        collectives: Of each process group and rank, the numbers of the collectives recorded.
        messages: Of each process group, sender and receiver, the numbers of the messages that each
            end recorded.
        inferred: Process groups, senders and receivers of which not all messages were recorded.
        uncertain: Of these, those of which it is open which send belongs to which receive.
    """

    parts: dict[Key, dict[int, Part]] = field(default_factory=lambda: defaultdict(dict))
    collectives: dict[tuple[Group, int], list[int]] = field(default_factory=dict)
    messages: dict[tuple[Group, tuple[int, int]], dict[int, range]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    inferred: set[tuple[Group, tuple[int, int]]] = field(default_factory=set)
    uncertain: set[tuple[Group, tuple[int, int]]] = field(default_factory=set)


def match_operations(calls: Mapping[int, Sequence[Call]], dumps: Mapping[int, Dump]) -> Operations:
    """Matches the calls of all ranks."""
    found = Operations()
    ends: dict[tuple[Group, tuple[int, int]], dict[int, list[Part]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for rank, made in calls.items():
        numbers: dict[Group, list[int]] = defaultdict(list)
        for call in made:
            if (number := call.collective) is not None:
                found.parts[Key(call.group, number)][rank] = Part(call, call.entry)
                numbers[call.group].append(number)
            for entry in call.messages:
                ends[call.group, _ends(call.group, rank, entry)][rank].append(Part(call, entry))
        found.collectives.update({(group, rank): ones for group, ones in numbers.items()})
    for (group, pair), parts in ends.items():
        sends, receives = parts[pair[0]], parts[pair[1]]
        ahead, is_certain = 0, True
        are_whole = all(_is_whole(dumps.get(rank), group, calls) for rank in pair)
        if pair[0] != pair[1] and not are_whole:
            found.inferred.add((group, pair))
            ahead, is_certain = _ahead(sends, receives, found, pair)
        if not is_certain:
            found.uncertain.add((group, pair))
        for rank, sides, skipped in ((pair[0], sends, ahead), (pair[1], receives, -ahead)):
            first = 1 + max(skipped, 0)
            found.messages[group, pair][rank] = range(first, first + len(sides))
            for number, part in enumerate(sides, start=first):
                found.parts[Key(group, number, pair)][rank] = part
    return found


def _ends(group: Group, rank: int, entry: Entry) -> tuple[int, int]:
    number = entry.peer or 0
    peer = group.ranks[number] if number < len(group.ranks) else number
    return (rank, peer) if entry.operation == "send" else (peer, rank)


def _is_whole(dump: Dump | None, group: Group, calls: Mapping[int, Sequence[Call]]) -> bool:
    """Whether all messages of a rank in the process group are recorded."""
    if dump is None:
        return True
    if not dump.is_from_start or dump.is_filtered:
        return False
    numbers = (
        call.entry.sequence
        for call in calls[dump.rank]
        if call.group == group and call.messages and call.entry.is_p2p
    )
    return next(numbers, 1) <= 1  # the recorder may have been reset


def _ahead(
    sends: Sequence[Part], receives: Sequence[Part], found: Operations, pair: tuple[int, int]
) -> tuple[int, bool]:
    """By how many messages the receiver's record begins before the sender's; whether that is so."""
    anchors = _anchors(found, pair)
    if anchors:
        counts = Counter(
            sum(part.entry.place < at[1] for part in receives)
            - sum(part.entry.place < at[0] for part in sends)
            for at in anchors
        )
        return counts.most_common(1)[0][0], True
    completed = [sum(part.call.is_completed for part in parts) for parts in (sends, receives)]
    likely = completed[1] - completed[0]
    tries = (likely + step * sign for step in range(len(sends) + 1) for sign in (1, -1))
    ahead = next((one for one in tries if _fits(sends, receives, one)), likely)
    return ahead, not any(part.call.is_coalesced for part in (*sends, *receives))


def _anchors(found: Operations, pair: tuple[int, int]) -> list[tuple[int, int]]:
    """Places of collectives in the records of both, the last ones."""
    places = []
    for (group, rank), numbers in found.collectives.items():
        if rank == pair[0] and (group, pair[1]) in found.collectives:
            for number in numbers[-_MOST_ANCHORS:]:
                parts = found.parts[Key(group, number)]
                if pair[1] in parts:
                    places.append((parts[pair[0]].entry.place, parts[pair[1]].entry.place))
    return sorted(places)[-_MOST_ANCHORS:]


def _fits(sends: Sequence[Part], receives: Sequence[Part], ahead: int) -> bool:
    """Whether what both ends completed has the same elements."""
    shifted = receives[ahead:] if ahead >= 0 else receives
    for send, receive in zip(sends[-ahead:] if ahead < 0 else sends, shifted, strict=False):
        both = send.call.is_completed and receive.call.is_completed
        if both and message_elements(send.entry) != message_elements(receive.entry):
            return False
    return True


def message_elements(entry: Entry) -> Elements | None:
    """What a send or receive moves; None where it is not recorded."""
    return entry.input_elements or entry.output_elements or None
