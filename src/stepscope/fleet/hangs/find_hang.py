"""Which operation hangs, who is missing in it, and who began it.

Definitions
    An operation hangs if a member is in it (it is the head of a lane, see `calls`), or timed out.
    Member: a rank that the group lists; where no dump lists them, every rank that used the group.
    Of a message, its sender and its receiver.
    What a member did:
        waiting      it is in the operation
        queued       it called the operation, but its GPU has not begun it: another call in the same
                     lane is before it, or the recorder has starts, and none of this one
        different    it called something else than most; where no call is that of most, each of them
        not there    it did not call it
        done         it left the operation: for it, nothing hangs
        overwritten  its record does not show: it begins later, or it is open which send belongs to
                     which receive, or completed operations were left out
        no dump      it left none
    An operation in which somebody is not there waits for that rank, and the rank waits for the
    operations that it is in. One in which somebody is queued waits for what that rank called
    before. What waits for nothing else is at the root:
        a rank that is in no operation, though others wait for it: a culprit
        an operation that was called in different ways: who called it differently is a culprit
        ranks that wait for each other in a circle: they called their operations in different
        orders, or both send, or both receive; all of them are named
        a rank without a dump: it may have ended, or its dump was not collected; it is named only
        if nothing of the above is found, as the one to look at
        an operation in which all members are: the network or the GPUs hold it up if all called it
        with the same arguments and all GPUs have begun it; otherwise nobody can say
    First missing call of a culprit: of the operations that others wait for it in, the one that
    another rank called before the others. Where no rank called several of them, the one that the
    culprit would have come to first: as long after the last operation that it shares with a rank
    that waits as that rank did. Clocks may be apart, and hosts may run ahead.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import polars as pl

from stepscope.analysis.selection.scope import AnsweredScope, Scope
from stepscope.errors import UsageError
from stepscope.fleet.hangs.calls import (
    Call,
    Key,
    Part,
    calls_of,
    heads_of,
    is_unclear,
    match_operations,
)
from stepscope.fleet.hangs.dump import TIMED_OUT, Dump, Group
from stepscope.fleet.hangs.operations import (
    completed_with_different_calls,
    describe_inputs,
    differing_calls,
    mismatched_table,
    odd_ranks,
    odd_ranks_of_exchange,
    operation_name,
    operations_table,
    totals_of_exchange,
    ways_to_call,
)
from stepscope.run.figures import rank_names

WAITING, QUEUED, DIFFERENT, NOT_THERE = "waiting", "queued", "different", "not there"
DONE, OVERWRITTEN, NO_DUMP = "done", "overwritten", "no dump"
_MISSING = (QUEUED, DIFFERENT, NOT_THERE, NO_DUMP)
_SILENT_ON_MESSAGES = "gloo"
_MOST_LISTED = 4

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
    "missing_call": pl.String,  # the first that others wait for it in
    "missing_where": pl.String,  # where another rank called it
    "entries": pl.Int64,
}
"""One row per rank, the culprits first."""


@dataclass(frozen=True)
class Hang:
    """What hangs.

    Attributes:
        verdict: What hangs and who began it, in one sentence.
        culprits: The ranks at the root; empty where nothing hangs, or none is known.
        mismatched: Columns `operations.MISMATCHED`.
        operations: Columns `operations.OPERATIONS`.
        scope: Entries that were read.
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
    """An operation that hangs.

    Attributes:
        inputs: A text: those of most members.
        parts: What those recorded that called it.
        behind: Of each rank that is or may be queued, the operations that it called before.
        problem: What is wrong with its arguments, if that does not show who is; else empty.
        is_inferred: Whether it is inferred that the send belongs to the receive.
    """

    key: Key
    group: str
    operation: str
    inputs: str
    did: dict[int, str]
    parts: dict[int, Part]
    behind: dict[int, tuple[Key, ...]]
    problem: str
    is_inferred: bool

    def ranks(self, *kinds: str) -> list[int]:
        return sorted(rank for kind in kinds for rank in self._by_kind.get(kind, ()))

    @cached_property
    def _by_kind(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for rank in sorted(self.did):
            found.setdefault(self.did[rank], []).append(rank)
        return found

    @property
    def label(self) -> str:
        """How to call it: "all_reduce 4 of group 0 (default_pg)"."""
        if self.key.ends is None:
            return f"{self.operation} {self.key.sequence} of group {self.group}"
        sender, receiver = self.key.ends
        return (
            f"message {self.key.sequence} from rank {sender} to rank {receiver}"
            f" of group {self.group}"
        )

    @property
    def have_all_begun(self) -> bool:
        """Whether all members recorded the arguments, and that their GPUs have begun it."""
        return not self.is_inferred and all(
            rank in self.parts
            and self.parts[rank].call.has_begun
            and self.parts[rank].call.has_arguments
            for rank in self.did
        )

    def ends_with_one_of(self, others: Sequence[_Hanging]) -> bool:
        """Whether it is a message with both ends in it, one of them by the call of another."""
        if self.key.ends is None or not len(self.ranks(WAITING, QUEUED)) == len(self.did) == 2:
            return False
        calls = {id(part.call) for other in others for part in other.parts.values()}
        return any(id(part.call) in calls for part in self.parts.values())

    @property
    def since_ns(self) -> int:
        """When the first member called it that still waits."""
        return min((self.parts[rank].entry.created_ns for rank in self.waiting), default=0)

    @property
    def waiting(self) -> list[int]:
        """Members that wait in it; where none has come so far, those that have it queued."""
        return self.ranks(WAITING) or self.ranks(QUEUED)

    @property
    def where(self) -> str:
        """The line of a rank that waits in it."""
        lines = (self.parts[rank].call.where for rank in self.ranks(WAITING, QUEUED, DIFFERENT))
        return next((line for line in lines if line), "")


@dataclass(frozen=True)
class _Root:
    """What a hang goes back to.

    Attributes:
        kind: DIFFERENT, NOT_THERE, _CYCLE, NO_DUMP, QUEUED, OVERWRITTEN, or WAITING where all are
            in it.
    """

    kind: str
    ranks: tuple[int, ...]
    hanging: tuple[_Hanging, ...]


_CYCLE = "circle"
_BY_EVIDENCE = (DIFFERENT, NOT_THERE, _CYCLE, QUEUED, NO_DUMP, OVERWRITTEN, WAITING)
"""Roots, those with the best evidence first."""


def find_hang(dumps: Sequence[Dump], ranks: int | None = None) -> Hang:
    """Finds what hangs, from the dumps of a job's ranks.

    Args:
        ranks: How many ranks the job has; by default those that the dumps mention.
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
    root = _root(hanging, job)
    ordered = _root_first(hanging, root)
    missing = {rank: first for rank in root.ranks if (first := job.first_missing(rank, ordered))}
    if root.kind == NOT_THERE and missing:  # the call that is missing first stands first
        first = min(missing.values(), key=lambda one: (one.since_ns, one.label))
        ordered.sort(key=lambda one: one is not first)
    differing = differing_calls(job.recorded)
    notes = completed_with_different_calls(job.recorded, differing, job.labels)
    have_differed = bool(notes)
    notes += [note for dump in dumps for note in dump.notes]
    if job.missing:
        notes.append(f"no dump of {rank_names(job.missing)} of {len(job.ranks)}")
    if root.kind == NOT_THERE and any(
        entry.backend == _SILENT_ON_MESSAGES for dump in dumps for entry in dump.entries[-1:]
    ):
        notes.append(
            "gloo does not record sends and receives: a rank that did not come may be in one"
        )
    return Hang(
        verdict=_verdict(ordered, root, job, have_differed=have_differed),
        culprits=root.ranks,
        hanging=_hanging_table(ordered),
        members=_members_table(ordered),
        ranks=_ranks_table(job, ordered, root.ranks, missing),
        mismatched=mismatched_table(job.recorded, differing, job.labels),
        operations=operations_table(job.recorded, job.labels),
        scope=AnsweredScope(Scope(), (), (), sum(len(dump.entries) for dump in dumps)),
        notes=tuple(notes),
    )


class _Job:
    """All dumps together.

    Attributes:
        labels: What to call each group, by its name.
        missing: Of these, those without a dump.
        recorded: What each rank did in each operation.
        heads: Of each rank, the calls in which it waits, in order.
    """

    def __init__(self, by_rank: dict[int, Dump], ranks: int | None) -> None:
        self.dumps = by_rank
        self.labels: dict[str, str] = {}
        listed: set[int] = set()
        for dump in by_rank.values():
            for group in {*dump.groups, *(entry.group for entry in dump.entries)}:
                listed.update(group.ranks)
        self.ranks = sorted(listed | set(by_rank) | set(range(ranks or 0)))
        self.missing = [rank for rank in self.ranks if rank not in by_rank]
        self._known = self._known_groups()
        self._same: dict[Group, Group] = {}
        calls: dict[int, list[Call]] = {}
        self._users: dict[Group, set[int]] = defaultdict(set)
        for rank, dump in by_rank.items():
            calls[rank] = calls_of(dump, lambda group, rank=rank: self._group(group, rank))  # type: ignore[misc]
            for group in {call.group for call in calls[rank]}:
                self._users[group].add(rank)
        self._operations = match_operations(calls, by_rank)
        self.recorded = self._operations.parts
        self.heads = {rank: heads_of(made) for rank, made in calls.items()}
        self._heads = {id(call) for made in self.heads.values() for call in made}
        self._starts = {rank: dump.records_starts for rank, dump in by_rank.items()}
        self.inside: dict[int, tuple[Key, ...]] = {}

    def _known_groups(self) -> dict[str, set[Group]]:
        """By name, the groups whose ranks some dump lists."""
        known: dict[str, set[Group]] = defaultdict(set)
        for dump in self.dumps.values():
            for group in {*dump.groups, *(entry.group for entry in dump.entries)}:
                if group.ranks:
                    known[group.name].add(Group(group.name, ranks=group.ranks))
        return known

    def _group(self, group: Group, rank: int) -> Group:
        """The group without its description, and with its ranks where any dump lists them."""
        self.labels.setdefault(group.name, group.label)
        fitting = [one for one in self._known[group.name] if rank in one.ranks]
        ranks = group.ranks or (fitting[0].ranks if len(fitting) == 1 else ())
        found = Group(group.name, ranks=ranks)
        return self._same.setdefault(found, found)

    def hanging(self) -> list[_Hanging]:
        heads = self._heads
        keys: dict[int, list[Key]] = defaultdict(list)  # of each head
        for key, parts in self.recorded.items():
            for part in parts.values():
                if id(part.call) in heads:
                    keys[id(part.call)].append(key)
        for call_keys in keys.values():
            # A coalesced group ends as a whole: with what is not delivered, nor about to be.
            left = [key for key in call_keys if not self._is_delivered(key)] or call_keys
            call_keys[:] = [key for key in left if not self._is_joined(key)] or left
        self.inside = {
            rank: tuple(dict.fromkeys(key for call in made for key in keys[id(call)]))
            for rank, made in self.heads.items()
        }
        wanted = dict.fromkeys(key for rank in sorted(self.inside) for key in self.inside[rank])
        return [self._judged(key, keys) for key in wanted]

    def _is_delivered(self, key: Key) -> bool:
        return any(part.call.is_completed for part in self.recorded[key].values())

    def _is_joined(self, key: Key) -> bool:
        """Whether both ends of a message have come to it and called it alike."""
        parts = self.recorded[key]
        return (
            key.ends is not None
            and len(parts) == 2
            and all(id(part.call) in self._heads for part in parts.values())
            and not odd_ranks(key, parts)
        )

    def _judged(self, key: Key, keys: dict[int, list[Key]]) -> _Hanging:
        parts = self.recorded[key]
        odd = set(odd_ranks(key, parts))
        did: dict[int, str] = {}
        behind: dict[int, tuple[Key, ...]] = {}
        has_begun = any(
            part.call.has_begun for part in parts.values() if not part.call.is_completed
        )
        for rank in self._members(key):
            if rank not in self.dumps:
                did[rank] = NO_DUMP
            elif rank not in parts:
                did[rank] = NOT_THERE if self._is_absent(rank, key) else OVERWRITTEN
            elif rank in odd:
                did[rank] = DIFFERENT
            elif parts[rank].call.is_completed:
                did[rank] = DONE
            else:
                did[rank], before = self._waits(rank, parts[rank].call, has_begun=has_begun)
                found = [one for call in before for one in keys[id(call)] if one != key]
                if self._is_joined(key):
                    mine = keys[id(parts[rank].call)]
                    found += [one for one in mine if not self._is_joined(one)]
                if others := tuple(dict.fromkeys(found)):
                    behind[rank] = others
        totals, problem = totals_of_exchange(key, parts), ""
        if totals and totals[0] != totals[1] and set(did) == set(parts) and not odd:
            for rank in odd_ranks_of_exchange(parts):
                did[rank] = DIFFERENT
            problem = f"its members send {totals[0]} elements and expect {totals[1]}"
        usual = parts[ways_to_call(key, parts)[0].ranks[0]]
        return _Hanging(
            key=key,
            group=self.labels[key.group.name],
            operation=operation_name(key, usual),
            inputs=describe_inputs(usual),
            did=did,
            parts=dict(parts),
            behind=behind,
            problem=problem,
            is_inferred=(key.group, key.ends) in self._operations.inferred,
        )

    def _waits(self, rank: int, call: Call, *, has_begun: bool) -> tuple[str, list[Call]]:
        """Whether the rank is in a call or has it queued, and the calls that may be before it."""
        before = [one for one in self.heads[rank] if one.entry.place < call.entry.place]
        in_lane = [one for one in before if one.lane == call.lane]
        if in_lane:
            return QUEUED, in_lane
        if call.has_begun:
            return WAITING, []
        has_starts = self._starts[rank] or has_begun
        return (QUEUED if has_starts and (before or has_begun) else WAITING), before

    def _is_absent(self, rank: int, key: Key) -> bool:
        """Whether a rank that has no record of an operation did not call it."""
        dump = self.dumps[rank]
        if dump.is_filtered:
            return False
        if key.ends is not None:
            if (key.group, key.ends) in self._operations.uncertain:
                return False
            numbers: Sequence[int] = self._operations.messages[key.group, key.ends][rank]
        else:
            numbers = self._operations.collectives.get((key.group, rank), [])
        if numbers and numbers[-1] > key.sequence:
            return False
        called = min(part.entry.created_ns for part in self.recorded[key].values())
        oldest = dump.entries[0].created_ns if dump.entries else 0
        return bool(numbers) or dump.is_from_start or oldest <= called

    def first_missing(self, rank: int, hanging: Sequence[_Hanging]) -> _Hanging | None:
        """Of the operations in which others wait for a rank, that which it would come to first."""
        waited = [one for one in hanging if one.did.get(rank) in (NOT_THERE, NO_DUMP)]
        if len(waited) < 2:
            return waited[0] if waited else None
        called = [one for one in waited if one.ranks(WAITING)] or waited
        own = sorted(
            (
                (parts[rank].entry.place, key)
                for key, parts in self.recorded.items()
                if rank in parts and len(parts) > 1
            ),
            key=lambda one: -one[0],
        )

        def expected_ns(one: _Hanging) -> int:
            times = []
            for peer in one.ranks(WAITING, QUEUED):
                shared = next(
                    (self.recorded[key] for _, key in own if peer in self.recorded[key]), {}
                )
                apart = (
                    shared[rank].entry.created_ns - shared[peer].entry.created_ns if shared else 0
                )
                times.append(one.parts[peer].entry.created_ns + apart)
            return min(times, default=0)

        def comes_later(one: _Hanging) -> bool:
            """Whether a rank that waits in it waits in another of them that it called before."""
            return any(
                other.parts[peer].entry.place < one.parts[peer].entry.place
                for other in called
                for peer in set(one.parts) & set(other.parts)
            )

        first = [one for one in called if not comes_later(one)] or called
        return min(first, key=lambda one: (expected_ns(one), one.label))

    def _members(self, key: Key) -> list[int]:
        if key.ends is not None:
            return sorted(set(key.ends))
        if key.group.ranks:
            return list(key.group.ranks)
        users = self._users[key.group]
        # The default group, which older dumps give no ranks, is that of all.
        is_default = "default" in self.labels[key.group.name] or key.group.name == "0"
        return list(self.ranks) if is_default else sorted(users)


_Node = Key | int
"""An operation or a rank."""


def _root(hanging: Sequence[_Hanging], job: _Job) -> _Root:
    by_key = {one.key: one for one in hanging}
    edges: dict[_Node, list[tuple[_Node, int]]] = {}  # with the rank that makes each
    for one in hanging:
        waits = [(rank, rank) for rank in one.ranks(NOT_THERE, NO_DUMP, OVERWRITTEN)]
        behind = [(key, rank) for rank, keys in one.behind.items() for key in keys if key in by_key]
        is_end = one.ranks(DIFFERENT) or one.problem
        edges[one.key] = [] if is_end else [*waits, *behind]
    for rank in {
        target for made in edges.values() for target, _ in made if isinstance(target, int)
    }:
        edges[rank] = [(key, rank) for key in job.inside.get(rank, ())]
    roots = [
        found for nodes in _ends(edges) if (found := _root_of(nodes, edges, by_key)) is not None
    ]
    if not roots:
        return _Root(WAITING, (), ())
    kind = min((one.kind for one in roots), key=_BY_EVIDENCE.index)
    same = [one for one in roots if one.kind == kind]
    if kind == DIFFERENT:
        # Who is at odds with several others is the one that differs.
        common = set.intersection(*(set(one.ranks) for one in same))
        if len(common) == 1:
            return _Root(kind, tuple(common), tuple(one.hanging[0] for one in same))
    if kind in (WAITING, _CYCLE, DIFFERENT):
        return min(same, key=lambda one: min((h.since_ns for h in one.hanging), default=0))
    ranks = tuple(sorted({rank for one in same for rank in one.ranks}))
    return _Root(kind, ranks, tuple(one for root in same for one in root.hanging))


def _root_of(
    nodes: Sequence[_Node],
    edges: dict[_Node, list[tuple[_Node, int]]],
    by_key: dict[Key, _Hanging],
) -> _Root | None:
    """What nodes stand for that wait for nothing else."""
    if len(nodes) > 1:
        inside = set(nodes)
        ranks = {rank for node in nodes for target, rank in edges[node] if target in inside}
        shown = tuple(by_key[node] for node in nodes if isinstance(node, Key))
        if any(inside & set(one.ranks(OVERWRITTEN)) for one in shown):
            return _Root(OVERWRITTEN, (), shown)
        absent = [node for node in nodes if isinstance(node, int)]
        if len(absent) == 1:
            # What it is in ends with the coalesced group that waits for it: no order is wrong.
            waited = tuple(one for one in shown if one.did.get(absent[0]) == NOT_THERE)
            others = [one for one in shown if one not in waited]
            if waited and all(one.ends_with_one_of(waited) for one in others):
                return _Root(NOT_THERE, (absent[0],), waited)
        return _Root(_CYCLE, tuple(sorted(ranks)), shown)
    (node,) = nodes
    if isinstance(node, int):
        waited = tuple(one for one in by_key.values() if one.did.get(node) in _ABSENT)
        kind = next((one.did[node] for one in waited), NOT_THERE)
        if any(one.did[node] == NOT_THERE for one in waited):
            kind = NOT_THERE
        return _Root(kind, (node,) if kind != OVERWRITTEN else (), waited)
    one = by_key[node]
    if different := one.ranks(DIFFERENT):
        return _Root(DIFFERENT, tuple(different), (one,))
    queued = one.ranks(QUEUED)
    if queued and not one.problem and one.ranks(WAITING):
        return _Root(QUEUED, tuple(queued), (one,))
    return _Root(WAITING, (), (one,))


_ABSENT = (NOT_THERE, NO_DUMP, OVERWRITTEN)


def _ends(edges: dict[_Node, list[tuple[_Node, int]]]) -> list[list[_Node]]:
    """The strongly connected parts of a graph from which no edge leads out."""
    order: dict[_Node, int] = {}
    low: dict[_Node, int] = {}
    stack: list[_Node] = []
    on_stack: set[_Node] = set()
    parts: list[list[_Node]] = []
    for start in edges:
        if start in order:
            continue
        work: list[tuple[_Node, int]] = [(start, 0)]
        while work:
            node, place = work.pop()
            if node not in order:
                order[node] = low[node] = len(order)
                stack.append(node)
                on_stack.add(node)
            targets = edges[node]
            while place < len(targets):
                target = targets[place][0]
                if target not in order:
                    work += [(node, place), (target, 0)]
                    break
                if target in on_stack:
                    low[node] = min(low[node], low[target])
                place += 1
            else:
                if low[node] == order[node]:
                    at = stack.index(node)
                    part = stack[at:]
                    del stack[at:]
                    on_stack.difference_update(part)
                    parts.append(part)
    return [
        part for part in parts if all(target in part for node in part for target, _ in edges[node])
    ]


def _root_first(hanging: Sequence[_Hanging], root: _Root) -> list[_Hanging]:
    shown = {one.key for one in root.hanging}
    return sorted(
        hanging,
        key=lambda one: (
            one.key not in shown,
            -len(one.ranks(WAITING)),
            one.since_ns,
            one.key.group.name,
            one.label,
        ),
    )


def _verdict(
    hanging: Sequence[_Hanging],
    root: _Root,
    job: _Job,
    *,
    have_differed: bool,
) -> str:
    unclear = [
        rank
        for rank, dump in job.dumps.items()
        if any(is_unclear(dump, entry) for entry in dump.entries)
    ]
    if not hanging and unclear:
        return (
            "cannot say whether anything hangs: completed operations are left out of the dumps of "
            f"{rank_names(unclear)}, and with them which sends and receives were completed"
        )
    waiting_ranks = [rank for rank, heads in job.heads.items() if heads]
    if not hanging and waiting_ranks:
        return (
            f"cannot say whether anything hangs: {rank_names(waiting_ranks)} "
            f"{'have' if len(waiting_ranks) > 1 else 'has'} open operations, and the dumps do not "
            "show which of the other ranks' are the same"
        )
    if not hanging:
        but = ", but ranks called some of them differently" if have_differed else ""
        return f"nothing hangs: every recorded operation was completed{but}"
    first = hanging[0]
    hangs = f"{first.label} hangs"
    waiting = first.waiting
    named = rank_names(root.ranks)
    if root.kind == DIFFERENT:
        odd = f"{first.problem}: " if first.problem else ""
        return f"{hangs}: {odd}{_last_calls(first)}"
    if root.kind == _CYCLE:
        return f"{named} wait for each other: {_circle(root)}"
    if root.kind == QUEUED:
        return (
            f"{hangs}: {_wait(waiting)} for {named}, which called it, but whose GPU has not "
            "begun it: work that it was given before does not end"
        )
    if root.kind == NO_DUMP:
        may = "it ended, did not come or waits" if len(root.ranks) == 1 else "they ended or wait"
        return (
            f"{hangs}: {_wait(waiting)} for {named}, which left no dump: cannot say whether {may}"
            " there too"
        )
    if root.kind == NOT_THERE:
        did = f"{_absence(root, first)}{_lines(first, root, job)}"
        return f"{hangs}: {_wait(waiting)} for {named}, {did}"
    if root.kind == OVERWRITTEN:
        unknown = rank_names({r for one in root.hanging for r in one.ranks(OVERWRITTEN)})
        return (
            f"{hangs}: {_wait(waiting)} in it; cannot say who is missing: the records do not show "
            f"what {unknown} did in it"
        )
    if first.problem:
        return f"{hangs}: {first.problem}: cannot say which of them is wrong"
    there = (
        f"{_wait(waiting)} in it, which {rank_names(first.ranks(DONE))} completed"
        if first.ranks(DONE)
        else f"with all its members in it ({rank_names(first.ranks(WAITING, QUEUED))})"
    )
    hangs = f"{hangs}: {there}" if first.ranks(DONE) else f"{hangs} {there}"
    if first.have_all_begun:
        return f"{hangs}: the network or the GPUs, rather than the program"
    calls = [part.call for part in first.parts.values()]
    if first.is_inferred or not all(call.has_arguments for call in calls):
        why = "not all that they called is recorded"
    else:
        why = "it is not recorded that all have begun it"
        if any(call.entry.backend.startswith("nccl") for call in calls):
            why += " (TORCH_NCCL_ENABLE_TIMING=1 records it)"
    return f"{hangs}; cannot say whether the network, a GPU or earlier work holds it up: {why}"


def _absence(root: _Root, first: _Hanging) -> str:
    if first.key.ends is None or len(root.ranks) > 1:
        return "which did not come"
    return f"which did not {'send' if root.ranks[0] == first.key.ends[0] else 'receive'} it"


def _lines(first: _Hanging, root: _Root, job: _Job) -> str:
    """Where others made the call that is missing, and what the culprit called last."""
    text = f"; the others called it at {first.where}" if first.where else ""
    if first.key.ends is not None and first.where:
        text = f"; {rank_names(first.ranks(WAITING, QUEUED))} called it at {first.where}"
    if len(root.ranks) > 1:
        return text
    rank = root.ranks[0]
    last = max(job.dumps[rank].entries, key=lambda one: one.place, default=None)
    if last is None:
        return f"{text}; rank {rank} called nothing"
    what = f"{last.operation} {last.sequence}"
    if last.peer is not None:
        listed = last.group.ranks
        peer = listed[last.peer] if last.peer < len(listed) else last.peer
        what = f"{last.operation} {'to' if last.operation == 'send' else 'from'} rank {peer}"
    at = f" at {last.where}" if last.where else ""
    return f"{text}; rank {rank} last called {what} in group {last.group.label}{at}"


def _circle(root: _Root) -> str:
    parts = []
    for one in root.hanging[:_MOST_LISTED]:
        waiting = [rank for rank in one.ranks(WAITING) if rank in root.ranks]
        if waiting:
            parts.append(f"{rank_names(waiting)} in {one.label}")
    ends = [one.key.ends for one in root.hanging]
    if all(ends):
        sides = {
            rank == end[0]
            for one, end in zip(root.hanging, ends, strict=True)
            for rank in one.ranks(WAITING)
            if end is not None
        }
        if sides == {True}:
            return f"each sends before it receives ({', '.join(parts)})"
        if sides == {False}:
            return f"each receives before it sends ({', '.join(parts)})"
    return f"they call their operations in different orders ({', '.join(parts)})"


def _last_calls(one: _Hanging) -> str:
    different = set(one.ranks(DIFFERENT))
    ways = ways_to_call(one.key, one.parts, with_outputs=bool(one.problem))
    parts = [
        f"{rank_names(ranks)} called {way.text}"
        for way in sorted(ways, key=lambda way: way.text)
        if (ranks := [rank for rank in way.ranks if rank in different])
    ]
    usual = [way.text for way in ways if not different & set(way.ranks)]
    if usual and one.ranks(WAITING, QUEUED, DONE):
        parts.append(f"the others {usual[0]}")
    return ", ".join(parts)


def _wait(ranks: Sequence[int]) -> str:
    return f"{rank_names(ranks)} wait{'' if len(ranks) > 1 else 's'}"


def _hanging_table(hanging: Sequence[_Hanging]) -> pl.DataFrame:
    rows = [
        {
            "group": one.group,
            "operation": one.operation,
            "sequence": one.key.sequence,
            "input": one.inputs,
            "members": len(one.did),
            "waiting": one.ranks(WAITING),
            "missing": one.ranks(*_MISSING),
            "timed_out": any(
                one.parts[rank].call.entry.state == TIMED_OUT for rank in one.ranks(WAITING)
            ),
            "since_time_ns": one.since_ns,
            "where": one.where or None,
        }
        for one in hanging
    ]
    return pl.DataFrame(rows, schema=HANGING)


def _members_table(hanging: Sequence[_Hanging]) -> pl.DataFrame:
    rows = []
    for one in hanging:
        for rank in sorted(one.did):
            part = one.parts.get(rank)
            rows.append(
                {
                    "group": one.group,
                    "sequence": one.key.sequence,
                    "rank": rank,
                    "did": one.did[rank],
                    "operation": None if part is None else part.entry.operation,
                    "state": None if part is None else part.call.entry.state,
                    "where": None if part is None else part.call.where or None,
                }
            )
    return pl.DataFrame(rows, schema=MEMBERS)


def _ranks_table(
    job: _Job,
    hanging: Sequence[_Hanging],
    culprits: Iterable[int],
    missing: dict[int, _Hanging],
) -> pl.DataFrame:
    guilty = set(culprits)
    waits = {rank for one in hanging for rank in one.ranks(WAITING, QUEUED, DIFFERENT)}
    rows = []
    for rank in job.ranks:
        dump = job.dumps.get(rank)
        entries = dump.entries if dump else ()
        last = max(entries, key=lambda one: (one.created_ns, one.place), default=None)
        did = NO_DUMP if dump is None else WAITING if rank in waits else "in no operation"
        first = missing.get(rank)
        rows.append(
            {
                "rank": rank,
                "is_culprit": rank in guilty,
                "did": did,
                "last_operation": None if last is None else last.operation,
                "last_group": None if last is None else last.group.label,
                "last_sequence": None if last is None else last.sequence,
                "last_call_time_ns": None if last is None else last.created_ns or None,
                "last_where": None if last is None else last.where or None,
                "missing_call": None if first is None else first.label,
                "missing_where": None if first is None else first.where or None,
                "entries": len(entries),
            }
        )
    return pl.DataFrame(rows, schema=RANKS).sort("is_culprit", "rank", descending=[True, False])
