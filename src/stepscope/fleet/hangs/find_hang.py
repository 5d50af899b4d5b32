"""Which operation hangs, who is missing in it, and who began it.

Definitions
    Operations of different ranks are the same one if they have the same process group (name and
    ranks), kind (collective or point-to-point) and number in it.
    A collective hangs if a member is still in it, or timed out in it. Of each group only the first
    one counts: what comes later waits for it.
    Member: a rank that the group lists; where no dump lists them, every rank that used the group.
    What a member did:
        waiting      it is in the collective
        queued       it called the collective, but its GPU has not begun it, though another's has
        different    it is in another operation than most: kind or input differ; where no call is
                     that of most, each of them
        not there    its dump has not come to this number
        done         it left the collective: for it, nothing hangs
        overwritten  its record begins later
        no dump      it left none, which is evidence in itself
    A send and its receive wait for each other: the peer is the only other member.
    A rank that is not there, or whose collective is queued, may wait in another group. It is passed
    over, and whoever is missing there is looked at. Culprit: a rank that others wait for and that
    waits for nobody, one in a different operation, or one without a dump. Where ranks only wait for
    each other in a circle, they called their collectives in different orders, and all of the circle
    are named.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from stepscope.analysis.selection.scope import AnsweredScope, Scope
from stepscope.errors import UsageError
from stepscope.fleet.hangs.dump import TIMED_OUT, Dump, Entry, Group
from stepscope.fleet.hangs.operations import (
    Key,
    completed_with_different_calls,
    mismatched_table,
    operations_table,
)
from stepscope.run.figures import ranks_in_words

WAITING, QUEUED, DIFFERENT, NOT_THERE = "waiting", "queued", "different", "not there"
DONE, OVERWRITTEN, NO_DUMP = "done", "overwritten", "no dump"
_MISSING = (QUEUED, DIFFERENT, NOT_THERE, NO_DUMP)
_BEGUN, _NOT_BEGUN = "started", "scheduled"

HANGING: dict[str, pl.DataType | type[pl.DataType]] = {
    "group": pl.String,
    "operation": pl.String,
    "sequence": pl.Int64,
    "input": pl.String,
    "members": pl.Int64,
    "waiting": pl.List(pl.Int64),
    "missing": pl.List(pl.Int64),  # queued, different, not there, or without a dump
    "timed_out": pl.Boolean,
    "since_time_ns": pl.Int64,  # Unix time of the first call that still waits
    "where": pl.String,  # in the code of a rank that waits
}
"""One row per operation that hangs, the one at the root first."""

MEMBERS: dict[str, pl.DataType | type[pl.DataType]] = {
    "group": pl.String,
    "sequence": pl.Int64,
    "rank": pl.Int64,
    "did": pl.String,  # see the module
    "operation": pl.String,  # of this number on this rank; null where it has none
    "state": pl.String,
    "where": pl.String,
}
"""One row per operation that hangs and member."""

RANKS: dict[str, pl.DataType | type[pl.DataType]] = {
    "rank": pl.Int64,
    "is_culprit": pl.Boolean,
    "did": pl.String,  # "waiting", "in no operation", "no dump"
    "last_operation": pl.String,  # the last that it called
    "last_group": pl.String,
    "last_sequence": pl.Int64,
    "last_call_time_ns": pl.Int64,  # Unix time
    "last_where": pl.String,
    "entries": pl.Int64,
}
"""One row per rank, the culprits first."""


@dataclass(frozen=True)
class Hang:
    """What hangs.

    Attributes:
        verdict: What hangs and who began it, in one sentence.
        culprits: The ranks at the root; empty where nothing hangs, or nobody can be told.
        hanging: Columns `HANGING`.
        members: Columns `MEMBERS`.
        ranks: Columns `RANKS`.
        mismatched: Columns `operations.MISMATCHED`.
        operations: Columns `operations.OPERATIONS`.
        scope: Entries that were read.
        notes: What a reader must know.
    """

    verdict: str
    culprits: tuple[int, ...]
    hanging: pl.DataFrame
    members: pl.DataFrame
    ranks: pl.DataFrame
    mismatched: pl.DataFrame
    operations: pl.DataFrame
    scope: AnsweredScope
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Hanging:
    """An operation that hangs, what its group is called, and what each member did."""

    key: Key
    group: str
    operation: str
    inputs: str
    did: dict[int, str]
    entries: dict[int, Entry]

    def ranks(self, *kinds: str) -> list[int]:
        """Members that did one of these, ascending."""
        return sorted(rank for rank, did in self.did.items() if did in kinds)

    @property
    def since_ns(self) -> int:
        """When the first member called it that still waits."""
        return min(
            (self.entries[rank].created_ns for rank in self.ranks(WAITING) if rank in self.entries),
            default=0,
        )


def find_hang(dumps: Sequence[Dump], ranks: int | None = None) -> Hang:
    """Finds what hangs, from the dumps of a job's ranks.

    Args:
        dumps: The dumps, each of another rank.
        ranks: How many ranks the job has; by default those that the dumps mention.

    Raises:
        UsageError: There is no dump, or a rank has two.
    """
    if not dumps:
        raise UsageError("no flight recorder dump was given")
    counts = Counter(dump.rank for dump in dumps)
    twice = [rank for rank, count in counts.items() if count > 1]
    if twice:
        raise UsageError(f"rank {twice[0]} has {counts[twice[0]]} dumps: give one of each rank")
    by_rank = {dump.rank: dump for dump in dumps}
    job = _Job(by_rank, ranks)
    hanging = job.hanging()
    culprits, circle = _culprits(hanging, job)
    ordered = _root_first(hanging, culprits)
    notes = completed_with_different_calls(job.recorded, job.words)
    notes += [note for dump in dumps for note in dump.notes]
    if job.missing:
        notes.append(f"no dump of {ranks_in_words(job.missing)} of {len(job.ranks)}")
    return Hang(
        verdict=_verdict(ordered, culprits, job, is_circle=circle),
        culprits=tuple(culprits),
        hanging=_hanging_table(ordered),
        members=_members_table(ordered),
        ranks=_ranks_table(job, ordered, culprits),
        mismatched=mismatched_table(job.recorded, job.words),
        operations=operations_table(job.recorded, job.words),
        scope=AnsweredScope(Scope(), (), (), sum(len(dump.entries) for dump in dumps)),
        notes=tuple(notes),
    )


class _Job:
    """All dumps together.

    Attributes:
        dumps: The dumps, by rank.
        words: What to call each group, by its name.
        ranks: All ranks of the job.
        missing: Of these, those without a dump.
        recorded: The entries of each operation, by rank.
    """

    def __init__(self, by_rank: dict[int, Dump], ranks: int | None) -> None:
        self.dumps = by_rank
        self.words: dict[str, str] = {}
        listed: set[int] = set()
        for dump in by_rank.values():
            for group in {*dump.groups, *(entry.group for entry in dump.entries)}:
                listed.update(group.ranks)
        self.ranks = sorted(listed | set(by_rank) | set(range(ranks or 0)))
        self.missing = [rank for rank in self.ranks if rank not in by_rank]
        self._known = self._known_groups()
        self.recorded: dict[Key, dict[int, Entry]] = defaultdict(dict)
        self._numbers: dict[tuple[Group, bool, tuple[int, ...], int], list[int]] = defaultdict(list)
        self._users: dict[Group, set[int]] = defaultdict(set)
        for rank, dump in by_rank.items():
            for entry in dump.entries:
                group = self._group(entry.group, rank)
                key = Key(group, entry.is_p2p, entry.sequence, _pair(entry, rank))
                self.recorded[key][rank] = entry
                self._numbers[key.group, key.is_p2p, key.pair, rank].append(entry.sequence)
                self._users[group].add(rank)

    def _known_groups(self) -> dict[str, set[Group]]:
        """By name, the groups whose ranks some dump tells."""
        known: dict[str, set[Group]] = defaultdict(set)
        for dump in self.dumps.values():
            for group in {*dump.groups, *(entry.group for entry in dump.entries)}:
                if group.ranks:
                    known[group.name].add(Group(group.name, ranks=group.ranks))
        return known

    def _group(self, group: Group, rank: int) -> Group:
        """The group without its description, and with its ranks where any dump tells them."""
        self.words.setdefault(group.name, group.words)
        if group.ranks:
            return Group(group.name, ranks=group.ranks)
        fitting = [one for one in self._known[group.name] if rank in one.ranks]
        return fitting[0] if len(fitting) == 1 else Group(group.name)

    def hanging(self) -> list[_Hanging]:
        """The first operation of each group (of each pair) that somebody is still in."""
        first: dict[tuple[Group, bool, tuple[int, ...]], Key] = {}
        for key, entries in self.recorded.items():
            if any(entry.is_waiting for entry in entries.values()):
                stream = (key.group, key.is_p2p, key.pair)
                if stream not in first or key.sequence < first[stream].sequence:
                    first[stream] = key
        found = (self._judged(key) for key in first.values())
        return [one for one in found if one.ranks(WAITING, QUEUED, DIFFERENT)]

    def _judged(self, key: Key) -> _Hanging:
        entries = self.recorded[key]
        waiting = [entry.signature for entry in entries.values() if entry.is_waiting]
        (usual, most), *others = Counter(waiting).most_common()
        nobody_is_usual = bool(others) and others[0][1] == most and not key.is_p2p
        has_begun = any(entry.state == _BEGUN for entry in entries.values() if entry.is_waiting)
        did = {}
        for rank in self._members(key):
            entry = entries.get(rank)
            if rank not in self.dumps:
                did[rank] = NO_DUMP
            elif entry is None:
                numbers = self._numbers[key.group, key.is_p2p, key.pair, rank]
                did[rank] = OVERWRITTEN if numbers and min(numbers) > key.sequence else NOT_THERE
                if not key.is_p2p and self._has_passed(rank, key):
                    did[rank] = OVERWRITTEN
            elif not key.is_p2p and (entry.signature != usual or nobody_is_usual):
                did[rank] = DIFFERENT
            elif has_begun and entry.state == _NOT_BEGUN:
                did[rank] = QUEUED
            else:
                did[rank] = WAITING if entry.is_waiting else DONE
        typical = next(one for one in entries.values() if one.is_waiting and one.signature == usual)
        inputs = typical.inputs if usual[1] else ""  # the members' inputs may well differ
        return _Hanging(key, self.words[key.group.name], usual[0], inputs, did, dict(entries))

    def _has_passed(self, rank: int, key: Key) -> bool:
        """Whether a rank called this collective, though its record does not show it any more."""
        numbers = self._numbers[key.group, key.is_p2p, key.pair, rank]
        return not numbers and self.dumps[rank].last_enqueued.get(key.group.name, -1) > key.sequence

    def _members(self, key: Key) -> list[int]:
        if key.is_p2p and key.pair:
            return sorted(key.pair)
        if key.group.ranks:
            return sorted(key.group.ranks)
        users = self._users[key.group]
        # The default group, which older dumps give no ranks, is that of all.
        is_default = "default" in self.words[key.group.name] or key.group.name == "0"
        return list(self.ranks) if is_default else sorted(users)


def _pair(entry: Entry, rank: int) -> tuple[int, ...]:
    """Both ends of a send or receive, as ranks of the job."""
    if not entry.is_p2p or entry.peer is None:
        return ()
    listed = entry.group.ranks
    peer = listed[entry.peer] if entry.peer < len(listed) else entry.peer
    return tuple(sorted((rank, peer)))


def _culprits(hanging: Sequence[_Hanging], job: _Job) -> tuple[list[int], bool]:
    """The ranks at the root, and whether they wait for each other in a circle."""
    different = {rank for one in hanging for rank in one.ranks(DIFFERENT)}
    if different:
        return sorted(different), False
    waits_in = {rank for one in hanging for rank in one.ranks(WAITING)}
    waited_for = {rank for one in hanging for rank in one.ranks(QUEUED, NOT_THERE, NO_DUMP)}
    roots = waited_for - waits_in
    if roots:
        # Who left no dump may have died for another reason: a rank that is there and waits for
        # nobody comes first, unless it waits for one without a dump, which nothing tells.
        return sorted(roots, key=lambda rank: (rank in job.dumps, rank)), False
    if any(not one.ranks(*_MISSING) and waited_for & set(one.ranks(WAITING)) for one in hanging):
        return [], False  # they wait where nobody is missing
    return sorted(waited_for), bool(waited_for)


def _root_first(hanging: Sequence[_Hanging], culprits: Sequence[int]) -> list[_Hanging]:
    guilty = set(culprits)
    return sorted(
        hanging,
        key=lambda one: (
            not guilty & set(one.ranks(*_MISSING)) if guilty else bool(one.ranks(*_MISSING)),
            -len(one.ranks(WAITING)),
            one.since_ns,
            one.key.group.name,
        ),
    )


def _verdict(
    hanging: Sequence[_Hanging], culprits: Sequence[int], job: _Job, *, is_circle: bool
) -> str:
    if not hanging:
        differ = completed_with_different_calls(job.recorded, job.words)
        but = ", but ranks called some of them differently" if differ else ""
        return f"nothing hangs: every recorded operation was completed{but}"
    root = hanging[0]
    what = f"{root.operation} {root.key.sequence} of group {root.group}"
    waiting = root.ranks(WAITING)
    if not culprits and root.ranks(DONE):
        return (
            f"{what} hangs: {_wait(waiting)} in it, which {ranks_in_words(root.ranks(DONE))} "
            "completed: the network or the GPUs, rather than the program"
        )
    if not culprits:
        return (
            f"{what} hangs with all its members in it ({ranks_in_words(waiting)}): the network or "
            "the GPUs, rather than the program"
        )
    who = ranks_in_words(culprits)
    if is_circle:
        return f"{who} wait for each other: they call their collectives in different orders"
    did = {root.did.get(rank, NOT_THERE) for rank in culprits}
    if did == {DIFFERENT}:
        return f"{what} hangs: {_who_called_what(root)}"
    if did == {QUEUED}:
        return (
            f"{what} hangs: {_wait(waiting)} for {who}, which called it, but whose GPU has not "
            "begun it: work that it was given before does not end"
        )
    if did == {NO_DUMP}:
        return f"{what} hangs: {_wait(waiting)} for {who}, which left no dump"
    without = [rank for rank in culprits if rank not in job.dumps]
    also = f" ({ranks_in_words(without)} left no dump)" if without else ""
    return f"{what} hangs: {_wait(waiting)} for {who}, which did not come{also}"


def _who_called_what(one: _Hanging) -> str:
    """The calls of an operation that differ, with the ranks that made each."""
    by_call: dict[str, list[int]] = defaultdict(list)
    for rank in one.ranks(DIFFERENT):
        entry = one.entries.get(rank)
        call = "something else" if entry is None else f"{entry.operation}({entry.inputs})"
        by_call[call].append(rank)
    told = [f"{ranks_in_words(ranks)} called {call}" for call, ranks in sorted(by_call.items())]
    if one.ranks(WAITING, QUEUED):
        told.append(f"the others {one.operation}({one.inputs})")
    return ", ".join(told)


def _wait(ranks: Sequence[int]) -> str:
    """Ranks that wait, as the subject of a sentence."""
    return f"{ranks_in_words(ranks)} wait{'' if len(ranks) > 1 else 's'}"


def _hanging_table(hanging: Sequence[_Hanging]) -> pl.DataFrame:
    rows = []
    for one in hanging:
        waiting = one.ranks(WAITING)
        waits = [one.entries[rank] for rank in waiting]
        rows.append(
            {
                "group": one.group,
                "operation": one.operation,
                "sequence": one.key.sequence,
                "input": one.inputs or next((entry.inputs for entry in waits), ""),
                "members": len(one.did),
                "waiting": waiting,
                "missing": one.ranks(*_MISSING),
                "timed_out": any(entry.state == TIMED_OUT for entry in waits),
                "since_time_ns": one.since_ns,
                "where": next((entry.where for entry in waits if entry.where), None),
            }
        )
    return pl.DataFrame(rows, schema=HANGING)


def _members_table(hanging: Sequence[_Hanging]) -> pl.DataFrame:
    rows = []
    for one in hanging:
        for rank in sorted(one.did):
            entry = one.entries.get(rank)
            rows.append(
                {
                    "group": one.group,
                    "sequence": one.key.sequence,
                    "rank": rank,
                    "did": one.did[rank],
                    "operation": None if entry is None else entry.operation,
                    "state": None if entry is None else entry.state,
                    "where": None if entry is None else entry.where or None,
                }
            )
    return pl.DataFrame(rows, schema=MEMBERS)


def _ranks_table(job: _Job, hanging: Sequence[_Hanging], culprits: Sequence[int]) -> pl.DataFrame:
    waits = {rank for one in hanging for rank in one.ranks(WAITING, QUEUED, DIFFERENT)}
    rows = []
    for rank in job.ranks:
        dump = job.dumps.get(rank)
        entries = dump.entries if dump else ()
        last = max(entries, key=lambda one: (one.created_ns, one.place), default=None)
        did = NO_DUMP if dump is None else WAITING if rank in waits else "in no operation"
        rows.append(
            {
                "rank": rank,
                "is_culprit": rank in culprits,
                "did": did,
                "last_operation": None if last is None else last.operation,
                "last_group": None if last is None else last.group.words,
                "last_sequence": None if last is None else last.sequence,
                "last_call_time_ns": None if last is None else last.created_ns or None,
                "last_where": None if last is None else last.where or None,
                "entries": len(entries),
            }
        )
    return pl.DataFrame(rows, schema=RANKS).sort("is_culprit", "rank", descending=[True, False])
