"""Which calls of different ranks are the same operation.

Definitions
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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stepscope.fleet.hangs.calls import Call
from stepscope.fleet.hangs.dump import Dump, Elements, Entry, Group

_MOST_ANCHORS = 64


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
