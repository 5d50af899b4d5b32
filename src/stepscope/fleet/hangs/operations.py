"""The operations that the ranks recorded, side by side, and the calls in them that differ.

Definitions
    The calls of an operation differ if members called another kind of collective under its number,
    or one with another type or number of elements where these must agree. Such an operation may
    complete all the same: gloo adds up the bytes of one type as if they were of the other. Its
    result is wrong then, and nothing says so.
    Call spread: from the first rank's call to the last one's, by the clocks of their machines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import polars as pl

from stepscope.fleet.hangs.dump import Entry, Group
from stepscope.run.figures import ranks_in_words

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

_MOST_TOLD = 3


@dataclass(frozen=True)
class Key:
    """An operation, as all its members know it.

    Attributes:
        group: Its process group.
        is_p2p: Whether it is a send and its receive.
        sequence: Its number among its kind in the group.
        pair: Both ends of a send and its receive, as ranks of the job.
    """

    group: Group
    is_p2p: bool
    sequence: int
    pair: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Call:
    """One way in which ranks called an operation."""

    text: str
    ranks: tuple[int, ...]
    where: str


def operations_table(
    recorded: Mapping[Key, Mapping[int, Entry]], words: Mapping[str, str]
) -> pl.DataFrame:
    """Every operation with what each rank did in it.

    Args:
        recorded: The entries of each operation, by rank.
        words: What to call each group, by its name.
    """
    rows = []
    for key, entries in recorded.items():
        called = {rank: entry.created_ns for rank, entry in entries.items() if entry.created_ns}
        usual = next(iter(entries[rank] for rank in _usual(key, entries)))
        rows.append(
            {
                "group": words[key.group.name],
                "operation": usual.operation,
                "sequence": key.sequence,
                "input": usual.inputs,
                "completed": sorted(r for r, entry in entries.items() if not entry.is_waiting),
                "inside": sorted(r for r, entry in entries.items() if entry.is_waiting),
                "calls_differ": len(_calls(key, entries)) > 1,
                "last_rank": max(called, key=lambda r: (called[r], r), default=None),
                "call_spread_ns": max(called.values()) - min(called.values()) if called else None,
                "first_call_time_ns": min(called.values(), default=None),
                "where": usual.where or None,
            }
        )
    return pl.DataFrame(rows, schema=OPERATIONS).sort(
        ["first_call_time_ns", "group", "sequence"],
        descending=[True, False, True],
        nulls_last=True,
        maintain_order=True,
    )


def mismatched_table(
    recorded: Mapping[Key, Mapping[int, Entry]], words: Mapping[str, str]
) -> pl.DataFrame:
    """The calls of operations whose calls differ; arguments as of `operations_table`."""
    rows = [
        {
            "group": words[key.group.name],
            "sequence": key.sequence,
            "call": call.text,
            "ranks": list(call.ranks),
            "is_completed": not any(entry.is_waiting for entry in recorded[key].values()),
            "where": call.where or None,
        }
        for key, calls in _differing(recorded)
        for call in calls
    ]
    return pl.DataFrame(rows, schema=MISMATCHED)


def completed_with_different_calls(
    recorded: Mapping[Key, Mapping[int, Entry]], words: Mapping[str, str]
) -> list[str]:
    """What to say of operations that were completed although their calls differ."""
    told = []
    for key, calls in _differing(recorded):
        if any(entry.is_waiting for entry in recorded[key].values()):
            continue
        who = ", ".join(f"{ranks_in_words(call.ranks)} called {call.text}" for call in calls)
        told.append(
            f"operation {key.sequence} of group {words[key.group.name]} was completed although"
            f" its calls differ: {who}; its result is not to be trusted"
        )
    more = len(told) - _MOST_TOLD
    return [*told[:_MOST_TOLD], *([f"and {more} more such operations"] if more > 0 else [])]


def _differing(
    recorded: Mapping[Key, Mapping[int, Entry]],
) -> Iterable[tuple[Key, tuple[_Call, ...]]]:
    """Operations that were called in several ways, the first called first."""
    found = ((key, _calls(key, entries)) for key, entries in recorded.items())
    differing = [(key, calls) for key, calls in found if len(calls) > 1]
    return sorted(
        differing,
        key=lambda one: (
            min(entry.created_ns for entry in recorded[one[0]].values()),
            one[0].group.name,
            one[0].sequence,
        ),
    )


def _calls(key: Key, entries: Mapping[int, Entry]) -> tuple[_Call, ...]:
    """The ways in which an operation was called, that of most ranks first."""
    if key.is_p2p:
        return ()  # a send and a receive are meant to differ
    by_signature: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for rank, entry in sorted(entries.items()):
        by_signature[entry.signature].append(rank)
    ordered = sorted(by_signature.values(), key=lambda ranks: (-len(ranks), ranks))
    return tuple(
        _Call(f"{entry.operation}({entry.inputs})", tuple(ranks), entry.where)
        for ranks in ordered
        for entry in (entries[ranks[0]],)
    )


def _usual(key: Key, entries: Mapping[int, Entry]) -> tuple[int, ...]:
    """The ranks whose call is that of most."""
    calls = _calls(key, entries)
    return calls[0].ranks if calls else (min(entries),)
