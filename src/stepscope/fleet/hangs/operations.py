"""The operations that the ranks recorded, side by side, and the calls in them that differ.

Definitions
    The calls of an operation differ if its members called another kind of collective under its
    number, or one with another type or number of elements where these must agree: inputs and
    outputs of most collectives, what each rank gets of a scatter or gives to a gather, the types
    of an all_to_all. Of a coalesced group all its operations must agree. What is sent must be what
    is received. Root and reduction are not recorded.
    Such an operation may complete all the same: gloo adds up the bytes of one type as if they were
    of the other. Its result is wrong then, and nothing says so.
    Call spread: from the first rank's call to the last one's, by the clocks of their machines.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from stepscope.fleet.hangs.calls import Call, Key, Part, message_elements
from stepscope.fleet.hangs.dump import Elements, Entry
from stepscope.run.figures import rank_names

OPERATIONS: dict[str, pl.DataType | type[pl.DataType]] = {
    "group": pl.String,
    "operation": pl.String,  # most ranks' call, as are the next two
    "sequence": pl.Int64,
    "input": pl.String,
    "completed": pl.List(pl.Int64),  # ranks that left it
    "inside": pl.List(pl.Int64),  # ranks that did not
    "calls_differ": pl.Boolean,
    "last_rank": pl.Int64,  # that called it last
    "call_spread_ns": pl.Int64,
    "first_call_time_ns": pl.Int64,  # Unix time
    "where": pl.String,
}
"""One row per operation that some dump records, the last call first."""

MISMATCHED: dict[str, pl.DataType | type[pl.DataType]] = {
    "group": pl.String,
    "sequence": pl.Int64,
    "call": pl.String,  # such as "all_reduce(Float[64])"
    "ranks": pl.List(pl.Int64),
    "is_completed": pl.Boolean,  # by all who called it
    "where": pl.String,
}
"""One row per way to call an operation that was called in several, the first operation first."""

_MOST_NOTES = 3
_MOST_PARTS = 4


@dataclass(frozen=True)
class Way:
    """One way in which ranks called an operation."""

    text: str
    ranks: tuple[int, ...]
    where: str


def operation_name(key: Key, usual: Part) -> str:
    """What an operation is called: "all_reduce", or "send 0→1" for a message."""
    if key.ends is not None:
        return f"send {key.ends[0]}→{key.ends[1]}"
    names = {entry.operation for entry in usual.call.parts}
    return f"coalesced {names.pop()}" if len(names) == 1 else usual.call.entry.operation


def describe_inputs(part: Part) -> str:
    """Types and shapes of what a rank gave to an operation."""
    if part.call.parts and part.entry is part.call.entry:
        return ", ".join(entry.inputs for entry in part.call.parts[:_MOST_PARTS])
    return part.entry.inputs


def ways_to_call(
    key: Key, parts: Mapping[int, Part], *, with_outputs: bool = False
) -> tuple[Way, ...]:
    """The ways in which an operation was called, that of most ranks first.

    Where as many ranks called it in one way as in another, one that agrees with itself comes first.

    Args:
        parts: What each rank did in it.
        with_outputs: Whether outputs matter though nothing needs to agree, as the totals of an
            all_to_all.
    """
    first = next(iter(parts.values()))
    if not with_outputs and key.ends is None and all(_is_alike(first, o) for o in parts.values()):
        text = _describe(first, with_outputs=False)
        return (Way(text, tuple(sorted(parts)), parts[min(parts)].call.where),)
    signatures = _signatures(key, parts)
    if with_outputs:
        signatures = {
            rank: (part.entry.input_elements, part.entry.output_elements)
            for rank, part in parts.items()
        }
    by_signature: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for rank in sorted(parts):
        by_signature[signatures[rank]].append(rank)
    members = len(key.group.ranks)
    ordered = sorted(
        by_signature.values(),
        key=lambda ranks: (-len(ranks), not _is_sound(parts[ranks[0]].call, members), ranks),
    )
    texts = [_describe(parts[ranks[0]], with_outputs=False) for ranks in ordered]
    if with_outputs or len(set(texts)) < len(texts):
        texts = [_describe(parts[ranks[0]], with_outputs=True) for ranks in ordered]
    return tuple(
        Way(text, tuple(ranks), parts[ranks[0]].call.where)
        for text, ranks in zip(texts, ordered, strict=True)
    )


def _is_alike(one: Part, other: Part) -> bool:
    """Whether two calls of a collective that is not coalesced are the same to the letter."""
    return (
        one.entry.operation == other.entry.operation
        and one.entry.given == other.entry.given
        and one.entry.taken == other.entry.taken
        and not one.call.is_coalesced
        and not other.call.is_coalesced
    )


def odd_ranks(key: Key, parts: Mapping[int, Part]) -> list[int]:
    """The ranks that called an operation in another way than most; all where none is that of most.

    Both ends of a message.
    """
    ways = ways_to_call(key, parts)
    if len(ways) < 2:
        return []
    first, second = ways[:2]
    members = len(key.group.ranks)
    is_usual = len(first.ranks) > len(second.ranks) or (
        _is_sound(parts[first.ranks[0]].call, members)
        and not any(_is_sound(parts[way.ranks[0]].call, members) for way in ways[1:])
    )
    odd = ways[1:] if is_usual and key.ends is None else ways
    return sorted(rank for way in odd for rank in way.ranks)


def totals_of_exchange(key: Key, parts: Mapping[int, Part]) -> tuple[int, int] | None:
    """How many elements the members of an all_to_all send and expect; None for other operations."""
    sums = [0, 0]
    for part in parts.values():
        entry = part.entry
        if key.ends is not None or not _is_exchange(entry) or part.call.parts:
            return None
        for place, elements in enumerate((entry.input_elements, entry.output_elements)):
            if elements is None:
                return None
            sums[place] += sum(count for _, count in elements)
    return sums[0], sums[1]


def odd_ranks_of_exchange(parts: Mapping[int, Part]) -> list[int]:
    """The ranks that cause an all_to_all whose totals disagree.

    If each rank recorded what it sends to each and expects from each, the rank that is in all pairs
    that disagree. Otherwise those that do not send and expect what most do, if these send as much
    as they expect. None where neither shows it.
    """
    ranks = sorted(parts)
    given = {rank: _counts(parts[rank].entry.input_elements) for rank in ranks}
    taken = {rank: _counts(parts[rank].entry.output_elements) for rank in ranks}
    if all(len(counts) == len(ranks) > 1 for counts in (*given.values(), *taken.values())):
        wrong = [
            {one, other}
            for place, one in enumerate(ranks)
            for at, other in enumerate(ranks)
            if given[one][at] != taken[other][place]
        ]
        common = set.intersection(*wrong) if wrong else set()
        return sorted(common)
    ways = Counter((sum(given[rank]), sum(taken[rank])) for rank in ranks)
    (usual, most), *_ = ways.most_common()
    if 2 * most <= len(ranks) or usual[0] != usual[1]:
        return []
    return [rank for rank in ranks if (sum(given[rank]), sum(taken[rank])) != usual]


def operations_table(
    recorded: Mapping[Key, Mapping[int, Part]], labels: Mapping[str, str]
) -> pl.DataFrame:
    """Every operation with what each rank did in it.

    Args:
        labels: What to call each group, by its name.
    """
    rows = []
    for key, parts in recorded.items():
        called = {
            rank: part.entry.created_ns for rank, part in parts.items() if part.entry.created_ns
        }
        ways = ways_to_call(key, parts)
        usual = parts[ways[0].ranks[0]]
        rows.append(
            {
                "group": labels[key.group.name],
                "operation": operation_name(key, usual),
                "sequence": key.sequence,
                "input": describe_inputs(usual),
                "completed": sorted(r for r, part in parts.items() if part.call.is_completed),
                "inside": sorted(r for r, part in parts.items() if not part.call.is_completed),
                "calls_differ": len(ways) > 1,
                "last_rank": max(called, key=lambda r: (called[r], r), default=None),
                "call_spread_ns": max(called.values()) - min(called.values()) if called else None,
                "first_call_time_ns": min(called.values(), default=None),
                "where": usual.call.where or None,
            }
        )
    return pl.DataFrame(rows, schema=OPERATIONS).sort(
        ["first_call_time_ns", "group", "sequence"],
        descending=[True, False, True],
        nulls_last=True,
        maintain_order=True,
    )


def mismatched_table(
    recorded: Mapping[Key, Mapping[int, Part]],
    differing: Sequence[tuple[Key, tuple[Way, ...]]],
    labels: Mapping[str, str],
) -> pl.DataFrame:
    """The calls of operations whose calls differ; arguments as of `operations_table`."""
    rows = [
        {
            "group": labels[key.group.name],
            "sequence": key.sequence,
            "call": way.text,
            "ranks": list(way.ranks),
            "is_completed": _is_over(recorded[key]),
            "where": way.where or None,
        }
        for key, ways in differing
        for way in ways
    ]
    return pl.DataFrame(rows, schema=MISMATCHED)


def completed_with_different_calls(
    recorded: Mapping[Key, Mapping[int, Part]],
    differing: Sequence[tuple[Key, tuple[Way, ...]]],
    labels: Mapping[str, str],
) -> list[str]:
    """What to say of operations that were completed although their calls differ."""
    notes = []
    for key, ways in differing:
        if not _is_over(recorded[key]):
            continue
        called = ", ".join(f"{rank_names(way.ranks)} called {way.text}" for way in ways)
        notes.append(
            f"operation {key.sequence} of group {labels[key.group.name]} was completed although"
            f" its calls differ: {called}; its result is not to be trusted"
        )
    more = len(notes) - _MOST_NOTES
    return [*notes[:_MOST_NOTES], *([f"and {more} more such operations"] if more > 0 else [])]


def _is_over(parts: Mapping[int, Part]) -> bool:
    return all(part.call.is_completed for part in parts.values())


def differing_calls(
    recorded: Mapping[Key, Mapping[int, Part]],
) -> list[tuple[Key, tuple[Way, ...]]]:
    """Operations that were called in several ways, the first called first."""
    found = ((key, ways_to_call(key, parts)) for key, parts in recorded.items())
    differing = [(key, ways) for key, ways in found if len(ways) > 1]
    return sorted(
        differing,
        key=lambda one: (
            min(part.entry.created_ns for part in recorded[one[0]].values()),
            one[0].group.name,
            one[0].sequence,
        ),
    )


def _signatures(key: Key, parts: Mapping[int, Part]) -> dict[int, tuple[object, ...]]:
    """What members must have in common, without what some of them did not record."""
    found = {
        rank: (message_elements(part.entry),) if key.ends is not None else _signature(part.call)
        for rank, part in parts.items()
    }
    unknown = {
        place
        for signature in found.values()
        for place, value in enumerate(signature)
        if value is None
    }
    return {
        rank: tuple(value for place, value in enumerate(signature) if place not in unknown)
        for rank, signature in found.items()
    }


def _signature(call: Call) -> tuple[object, ...]:
    if not call.is_coalesced:
        return _signature_of_entry(call.entry)
    inner = tuple(_signature_of_entry(one) for one in call.parts if not one.is_p2p)
    return call.entry.operation, None, None, inner if call.is_whole and inner else None


def _signature_of_entry(entry: Entry) -> tuple[object, ...]:
    given, taken = entry.input_elements, entry.output_elements
    if _is_exchange(entry):
        kinds = (_kinds(given), _kinds(taken))
        return entry.operation, *kinds, ()
    if entry.operation == "gather":
        return entry.operation, given, (), ()
    if entry.operation == "scatter":
        # The root records one tensor for each rank beside its own, on either side.
        sides = [side for side in (taken, given) if side and len(side) == 1 and side[0][1]]
        return entry.operation, sides[0] if len(sides) == 1 else None, (), ()
    return entry.operation, given, taken, ()


def _is_exchange(entry: Entry) -> bool:
    return entry.operation.replace("_", "").startswith("alltoall")


def _kinds(elements: Elements | None) -> tuple[str, ...] | None:
    """The types of those that are not empty; None where all are."""
    return tuple(sorted({kind for kind, count in elements or () if count})) or None


def _counts(elements: Elements | None) -> list[int]:
    return [count for _, count in elements or ()]


def _is_sound(call: Call, members: int) -> bool:
    """Whether inputs and outputs of a call agree with each other."""
    given, taken = sum(_counts(call.entry.input_elements)), sum(_counts(call.entry.output_elements))
    name = call.entry.operation
    if call.is_coalesced or not members or not given or not taken:
        return True
    if "all_gather" in name:
        return taken == given * members
    if "reduce_scatter" in name:
        return given == taken * members
    return given == taken or not name.startswith("all_reduce")


def _describe(part: Part, *, with_outputs: bool) -> str:
    if not part.call.parts or part.entry is not part.call.entry:
        return _describe_entry(part.entry, with_outputs=with_outputs)
    shown = [
        _describe_entry(one, with_outputs=with_outputs) for one in part.call.parts[:_MOST_PARTS]
    ]
    more = len(part.call.parts) - _MOST_PARTS
    return f"{part.entry.operation}({', '.join(shown)}{f' and {more} more' if more > 0 else ''})"


def _describe_entry(entry: Entry, *, with_outputs: bool) -> str:
    outputs = f" → {entry.outputs}" if with_outputs and entry.outputs else ""
    return f"{entry.operation}({entry.inputs}{outputs})"
