"""A simulator of jobs that hang, and of the dumps that torch's flight recorder writes of them.

It knows nothing of Stepscope. It follows torch's `ProcessGroupNCCL` and `FlightRecorder`:

* Each process group of a rank counts its collectives (`collective_seq_id`), its sends and receives
  (`p2p_seq_id`) and its operations (`op_id`). A coalesced group counts once; its operations are
  recorded without events, so that they stay "scheduled", then its own entry without tensors.
* Process groups are numbered in each process by itself (`pg_id`). `pg_status` is by that number,
  and its sequences are those of collectives and of sends and receives, whichever came last.
* Collectives, coalesced groups and, where the communicators are made at the start, single sends run
  on the group's stream; otherwise single sends run on a stream of their pair.
* An operation is "started" only with timing. It starts when its stream and what its rank waited for
  have come so far, and ends when all of its members have started and called it alike. A small send
  ends when it starts.
* The buffer is a ring; a dump may leave out what was completed.

`simulate` plants one fault, runs the job until nothing moves, and knows who is to blame.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field, replace

T0_NS = 1_790_000_000_000_000_000
TICK_NS = 1_000_000
SMALL = 64
"""Elements up to which a send does not wait for its receive."""

FAULTS = (
    "none",
    "absent",
    "killed",
    "order",
    "direction",
    "size",
    "output size",
    "type",
    "uneven exchange",
    "network",
    "stuck GPU",
)


@dataclass(frozen=True)
class Communicator:
    name: str
    description: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Operation:
    name: str
    given: tuple[tuple[int, ...], ...]
    taken: tuple[tuple[int, ...], ...]
    kind: str = "Float"
    peer: int | None = None  # by its number in the communicator

    @property
    def elements(self) -> int:
        return _volume(self.given)


@dataclass(frozen=True)
class Call:
    """What a rank calls at once; several operations are coalesced."""

    communicator: Communicator
    operations: tuple[Operation, ...]
    line: int
    is_coalesced: bool = False
    is_async: bool = False
    waits_for_all: bool = False  # the host waits for all that it called, then goes on
    end_name: str = "coalesced"
    number: int = 0  # in the order of the job

    @property
    def is_message(self) -> bool:
        return self.operations[0].peer is not None


@dataclass
class Issued:
    """A call that a rank made."""

    rank: int
    call: Call
    created: int
    collective: int
    messages: list[tuple]  # of each operation: which message of which peers
    started: int | None = None
    completed: int | None = None


@dataclass(frozen=True)
class Case:
    """Dumps of a job, and the truth about it.

    Attributes:
        seed: What it was made from.
        fault: What was planted.
        dumps: The dumps that were left, by rank, as plain values.
        world: How many ranks the job has.
        hangs: Whether the job does.
        culprit: The rank to blame; None: no rank is.
        in_circle: The ranks that wait for each other, if the fault makes them.
        ends: The ranks that called the mismatched operation.
        missing_call: Process group's name and operation of the first call that the culprit did not
            make though another rank is in it; None if it made all.
        missing_line: The line of that call.
        has_timing: Whether starts are recorded.
        losses: What is missing of the records: "dumps", "beginnings" that were overwritten, and
            operations that were "completed".
    """

    seed: int
    fault: str
    dumps: dict[int, dict]
    world: int
    hangs: bool
    culprit: int | None
    in_circle: frozenset[int]
    ends: frozenset[int]
    missing_call: tuple[str, str] | None
    missing_line: int | None
    has_timing: bool
    losses: frozenset[str]
    layout: str

    @property
    def is_complete(self) -> bool:
        """Whether all ranks left all of their records."""
        return not self.losses


@dataclass
class Job:
    """The calls of each rank."""

    programs: dict[int, list[Call]]
    communicators: list[Communicator]
    steps: int
    layout: str
    shared_names: bool = False
    lines: dict[str, int] = field(default_factory=dict)


def simulate(seed: int, fault: str | None = None) -> Case:
    """A job with a fault, random but for the seed."""
    dice = random.Random(seed)
    while True:
        chosen = fault or dice.choice(FAULTS)
        job = _job(dice)
        found = _with_fault(job, chosen, dice)
        if found is not None:
            break
    programs, culprit, stop, stuck, broken, ends = found
    eager = dice.random() < 0.5
    run = _Run(
        programs,
        stop=stop,
        stuck=stuck,
        broken=broken,
        host_waits=dice.random() < 0.5,
        one_stream=eager,
    )
    run.until_nothing_moves()
    hangs = run.hangs()
    has_timing = dice.random() < 0.6
    lost = {culprit} if chosen == "killed" and culprit is not None else set()
    world = len(programs)
    if dice.random() < 0.2 and world > 2:
        lost |= set(dice.sample(range(world), dice.randint(1, max(1, world // 3))))
    size, only_active = 10_000, False
    trouble = dice.random()
    if trouble < 0.2:
        size = dice.randint(6, 40)
    elif trouble < 0.25:
        only_active = True
    losses = {
        "dumps": bool(lost),
        "beginnings": max(run.records(), default=0) > size,
        "completed": only_active,
    }
    dumps = {
        rank: _Recorder(rank, job.communicators, run, dice, size, has_timing, only_active).dump()
        for rank in sorted(programs)
        if rank not in lost
    }
    missing = run.missing_call(culprit) if culprit is not None else None
    return Case(
        seed=seed,
        fault=chosen,
        dumps=dumps,
        world=world,
        hangs=hangs,
        culprit=culprit,
        in_circle=run.circle(),
        ends=frozenset(ends),
        missing_call=(missing.communicator.name, missing.operations[0].name) if missing else None,
        missing_line=missing.line if missing else None,
        has_timing=has_timing,
        losses=frozenset(name for name, is_so in losses.items() if is_so),
        layout=job.layout,
    )


# Jobs that end if nothing is planted: all ranks go through the same operations in one order.


def _job(dice: random.Random) -> Job:
    world = dice.randint(2, 8)
    everyone = Communicator("0", "default_pg", tuple(range(world)))
    groups = _groups(dice, world)
    communicators = [everyone, *(one for kind in groups.values() for one in kind)]
    programs: dict[int, list[Call]] = {rank: [] for rank in range(world)}
    kinds = dice.sample(sorted(_PHASES), dice.randint(1, 4))
    steps = dice.randint(2, 5)
    phases = [(kind, dice.random()) for kind in kinds]
    number = 0
    for _ in range(steps):
        for kind, chance in phases:
            # Every step has the same phases with the same sizes.
            for calls in _PHASES[kind](random.Random(chance), everyone, groups):
                number += 1
                for rank, call in calls.items():
                    programs[rank].append(replace(call, number=number))
        for program in programs.values():
            if program:
                program[-1] = replace(program[-1], waits_for_all=True)
    return Job(programs, communicators, steps, "+".join(kinds))


def _groups(dice: random.Random, world: int) -> dict[str, list[Communicator]]:
    """Disjoint groups of neighbours (tensor parallel) and of every n-th (data parallel)."""
    widths = [width for width in range(2, world) if world % width == 0]
    if not widths:
        return {}
    width = dice.choice(widths)
    rows = [tuple(range(start, start + width)) for start in range(0, world, width)]
    columns = [tuple(range(start, world, width)) for start in range(width)]
    shares_names = dice.random() < 0.5
    names = iter(range(1, 100))

    def make(description: str, sets: list[tuple[int, ...]]) -> list[Communicator]:
        first = next(names)
        return [
            Communicator(
                str(first if shares_names or place == 0 else next(names)), description, ranks
            )
            for place, ranks in enumerate(sets)
        ]

    return {"row": make("mesh_tp", rows), "column": make("mesh_dp", columns)}


def _some(dice: random.Random, everyone: Communicator, groups: dict) -> list[Communicator]:
    """One kind of groups, or the group of all."""
    return dice.choice([[everyone], *groups.values()])


def _size(dice: random.Random) -> int:
    return dice.choice([16, 64, 256, 1024, 4096]) * dice.randint(1, 3)


def _collective(
    communicator: Communicator, name: str, size: int, kind: str
) -> dict[int, Operation]:
    """What each rank of a communicator passes to a collective."""
    count = len(communicator.ranks)
    shape = ((size,),)
    wide = ((size * count,),)
    plain = {"all_reduce": (shape, shape), "broadcast": (shape, shape), "reduce": (shape, shape)}
    if name in plain:
        given, taken = plain[name]
    elif name == "_all_gather_base":
        given, taken = shape, wide
    elif name == "_reduce_scatter_base":
        given, taken = wide, shape
    elif name == "all_gather_into_tensor_coalesced":
        given, taken = shape * 2, wide * 2
    elif name == "gather":
        return {
            rank: Operation(name, shape, shape * count if place == 0 else ((0,),), kind)
            for place, rank in enumerate(communicator.ranks)
        }
    else:
        given, taken = ((1,),), ((1,),)  # barrier
    return {rank: Operation(name, given, taken, kind) for rank in communicator.ranks}


_COLLECTIVES = (
    "all_reduce",
    "broadcast",
    "reduce",
    "_all_gather_base",
    "_reduce_scatter_base",
    "all_gather_into_tensor_coalesced",
    "gather",
    "all_reduce_barrier",
)


def _collectives(dice: random.Random, everyone: Communicator, groups: dict) -> list[dict]:
    """A few collectives in some groups, some of which the ranks do not wait for."""
    calls = []
    for _ in range(dice.randint(1, 4)):
        chosen = _some(dice, everyone, groups)
        name, size = dice.choice(_COLLECTIVES), _size(dice)
        kind, is_async = dice.choice(["Float", "BFloat16"]), dice.random() < 0.4
        line = dice.randint(10, 99)
        calls.append(
            {
                rank: Call(one, (operation,), line, is_async=is_async)
                for one in chosen
                for rank, operation in _collective(one, name, size, kind).items()
            }
        )
    return calls


def _coalesced_collectives(dice: random.Random, everyone: Communicator, groups: dict) -> list[dict]:
    """A coalescing manager, or an all_gather of uneven tensors."""
    chosen, line = _some(dice, everyone, groups), dice.randint(10, 99)
    if dice.random() < 0.5:
        names = [dice.choice(["_all_gather_base", "_reduce_scatter_base"]) for _ in range(2)]
        sizes = [_size(dice) for _ in names]
        return [
            {
                rank: Call(
                    one,
                    tuple(
                        _collective(one, name, size, "Float")[rank]
                        for name, size in zip(names, sizes, strict=True)
                    ),
                    line,
                    is_coalesced=True,
                )
                for one in chosen
                for rank in one.ranks
            }
        ]
    size = _size(dice)
    return [
        {
            rank: Call(
                one,
                tuple(
                    Operation("_broadcast_oop", ((size + place,),), ((size + place,),))
                    for place in range(len(one.ranks))
                ),
                line,
                is_coalesced=True,
                end_name="ALLGATHER_coalesced",
            )
            for one in chosen
            for rank in one.ranks
        }
    ]


def _exchange(dice: random.Random, everyone: Communicator, groups: dict) -> list[dict]:
    """An all_to_all, even or not."""
    chosen, line = _some(dice, everyone, groups), dice.randint(10, 99)
    is_even, size, in_lists = dice.random() < 0.4, _size(dice), dice.random() < 0.3
    calls = {}
    for one in chosen:
        count = len(one.ranks)
        parts = [
            [size if is_even else size + dice.randint(0, 50) for _ in range(count)]
            for _ in range(count)
        ]
        for place, rank in enumerate(one.ranks):
            given = parts[place]
            taken = [row[place] for row in parts]
            if in_lists:
                shapes = tuple((n,) for n in given), tuple((n,) for n in taken)
            else:
                shapes = ((sum(given),),), ((sum(taken),),)
            calls[rank] = Call(one, (Operation("all_to_all", *shapes),), line)
    return [calls]


def _message(one: Communicator, rank: int, peer: int, size: int, *, sends: bool) -> Operation:
    own, other = one.ranks.index(rank), one.ranks.index(peer)
    name = f"send {own}->{other}" if sends else f"recv {own}<-{other}"
    return Operation(name, ((size,),), ((size,),), peer=other)


def _pipeline(dice: random.Random, everyone: Communicator, groups: dict) -> list[dict]:
    """Micro-batches through stages: each stage receives, then sends; then the way back."""
    chosen = _some(dice, everyone, groups)
    size, coalesced = _size(dice), dice.random() < 0.5
    lines = dice.randint(10, 50), dice.randint(51, 99)
    calls = []
    count = len(chosen[0].ranks)
    hops = [(at, at + 1) for at in range(count - 1)]
    for way, line in ((hops, lines[0]), ([(b, a) for a, b in reversed(hops)], lines[1])):
        for _ in range(dice.randint(1, 3)):
            for source, target in way:
                step = {}
                for one in chosen:
                    a, b = one.ranks[source], one.ranks[target]
                    step[a] = Call(one, (_message(one, a, b, size, sends=True),), line, coalesced)
                    step[b] = Call(one, (_message(one, b, a, size, sends=False),), line, coalesced)
                calls.append(step)
    return calls


def _ring(dice: random.Random, everyone: Communicator, groups: dict) -> list[dict]:
    """`batch_isend_irecv`: each rank sends to the next and receives from the one before."""
    chosen, size, line = _some(dice, everyone, groups), _size(dice), dice.randint(10, 99)
    swaps = dice.random() < 0.5
    calls = []
    for _ in range(dice.randint(1, 3)):
        step = {}
        for one in chosen:
            for place, rank in enumerate(one.ranks):
                after = one.ranks[(place + 1) % len(one.ranks)]
                before = one.ranks[place - 1]
                both = [
                    _message(one, rank, after, size, sends=True),
                    _message(one, rank, before, size, sends=False),
                ]
                operations = both[::-1] if swaps else both
                step[rank] = Call(one, tuple(operations), line, is_coalesced=True)
        calls.append(step)
    return calls


_PHASES = {
    "collectives": _collectives,
    "coalesced": _coalesced_collectives,
    "exchange": _exchange,
    "pipeline": _pipeline,
    "ring": _ring,
}


# Faults.

_Planted = tuple[
    dict[int, list[Call]],  # the programs
    "int | None",  # who is to blame
    "dict[int, int]",  # at which call a rank stops
    "dict[int, int]",  # before which call a rank's GPU does not end its work
    "set[int]",  # numbers of the calls that the network does not carry
    "set[int]",  # who called the mismatched operation
]


def _with_fault(job: Job, fault: str, dice: random.Random) -> _Planted | None:
    """The job with a fault, or None if it has no place for it."""
    programs = {rank: list(program) for rank, program in job.programs.items()}
    places = [(rank, at) for rank, program in programs.items() for at in range(len(program))]
    none: _Planted = (programs, None, {}, {}, set(), set())
    if fault == "none":
        return none
    fits = [(rank, at) for rank, at in places if _fits(fault, programs[rank], at)]
    if not fits:
        return None
    rank, at = dice.choice(fits)
    call = programs[rank][at]
    ends = {
        one
        for one, program in programs.items()
        if any(c.number == call.number and c.communicator == call.communicator for c in program)
    }
    if fault in ("absent", "killed"):
        return programs, rank, {rank: at}, {}, set(), set()
    if fault == "stuck GPU":
        return programs, rank, {}, {rank: at}, set(), set()
    if fault == "network":
        return programs, None, {}, {}, {call.number}, ends
    if fault == "order":
        programs[rank][at : at + 2] = programs[rank][at : at + 2][::-1]
        return programs, rank, {}, {}, set(), ends
    place = dice.randrange(len(call.operations))
    operation = call.operations[place]
    if operation.peer is not None:
        peer = call.communicator.ranks[operation.peer]
        ends = {rank, peer}
    operations = list(call.operations)
    operations[place] = _changed(operation, fault, call, rank)
    programs[rank][at] = replace(call, operations=tuple(operations))
    return programs, rank, {}, {}, set(), ends


def _fits(fault: str, program: list[Call], at: int) -> bool:
    call = program[at]
    name = call.operations[0].name
    if fault == "order":
        return at + 1 < len(program) and _form(call) != _form(program[at + 1])
    if fault == "direction":
        return call.is_message
    if fault == "output size":
        return name in ("_all_gather_base", "_reduce_scatter_base")
    if fault == "size":
        return name not in ("all_to_all", "all_reduce_barrier")
    if fault == "type":
        return name != "all_reduce_barrier"
    if fault == "uneven exchange":
        return name == "all_to_all"
    return True


def _form(call: Call) -> tuple:
    return call.communicator, call.is_coalesced, call.operations


def _changed(operation: Operation, fault: str, call: Call, rank: int) -> Operation:
    """An operation as a program with a fault calls it."""
    grow = lambda shapes: tuple((shape[0] * 2, *shape[1:]) for shape in shapes)  # noqa: E731
    if fault == "direction":
        one, peer = call.communicator, call.communicator.ranks[operation.peer or 0]
        size = operation.given[0][0]
        return _message(one, rank, peer, size, sends=not operation.name.startswith("send"))
    if fault == "type":
        return replace(operation, kind="Half" if operation.kind != "Half" else "Float")
    if fault == "output size":
        return replace(operation, taken=grow(operation.taken))
    if fault == "uneven exchange":
        first, *others = operation.taken
        return replace(operation, taken=((first[0] + 44,), *others))
    taken = operation.taken if operation.taken == ((0,),) else grow(operation.taken)
    return replace(operation, given=grow(operation.given), taken=taken)


# The run.


class _Run:
    """A job that runs until nothing moves."""

    def __init__(
        self,
        programs: dict[int, list[Call]],
        *,
        stop: dict[int, int],
        stuck: dict[int, int],
        broken: set[int],
        host_waits: bool,
        one_stream: bool,
    ) -> None:
        self.programs = programs
        self.issued: dict[int, list[Issued]] = {rank: [] for rank in programs}
        self._stop, self._stuck, self._broken = stop, stuck, broken
        self._host_waits, self._one_stream = host_waits, one_stream
        self._collectives: dict[tuple[Communicator, int], int] = defaultdict(int)
        self._messages: dict[tuple, int] = defaultdict(int)
        self._members: dict[tuple[Communicator, int], dict[int, Issued]] = defaultdict(dict)
        self._ends: dict[tuple, dict[bool, tuple[Issued, Operation]]] = defaultdict(dict)
        self.now = 0

    def until_nothing_moves(self) -> None:
        moves = True
        while moves:
            self.now += 1
            moves = False
            for rank in self.programs:
                moves |= self._issue(rank)
                moves |= self._start(rank)
            for rank in self.programs:
                moves |= self._complete(rank)

    def _issue(self, rank: int) -> bool:
        """The host calls what it comes to, one call at a time."""
        made = self.issued[rank]
        at = len(made)
        if at >= self._stop.get(rank, len(self.programs[rank])):
            return False
        if made:
            last = made[-1]
            waits = last.call.waits_for_all or (self._host_waits and not last.call.is_async)
            if last.call.waits_for_all and any(one.completed is None for one in made):
                return False
            if waits and last.completed is None:
                return False
        call = self.programs[rank][at]
        one, messages, number = call.communicator, [], 0
        if not call.is_message:
            self._collectives[one, rank] += 1
            number = self._collectives[one, rank]
        issued = Issued(rank, call, self.now, number, messages)
        if not call.is_message:
            self._members[one, number][rank] = issued
        for operation in call.operations:
            if operation.peer is not None:
                key = self._message_key(call, rank, operation)
                sends = operation.name.startswith("send")
                self._messages[key, sends] += 1
                messages.append((key, self._messages[key, sends]))
                self._ends[messages[-1]][sends] = (issued, operation)
        made.append(issued)
        return True

    def _message_key(self, call: Call, rank: int, operation: Operation) -> tuple:
        one = call.communicator
        peer = one.ranks[operation.peer or 0]
        pair = (rank, peer) if operation.name.startswith("send") else (peer, rank)
        return one, pair, self._one_stream or call.is_coalesced

    def _stream(self, issued: Issued) -> tuple:
        call = issued.call
        if call.is_coalesced or not call.is_message or self._one_stream:
            return (call.communicator,)
        return call.communicator, call.operations[0].peer

    def _start(self, rank: int) -> bool:
        moves = False
        for at, issued in enumerate(self.issued[rank]):
            if issued.started is not None:
                continue
            if at >= self._stuck.get(rank, at + 1):
                break
            open_calls = [one for one in self.issued[rank][:at] if one.completed is None]
            # The host waits for all calls of a step before it makes the next one.
            if all(
                one.call.is_async and self._stream(one) != self._stream(issued)
                for one in open_calls
            ):
                issued.started = self.now
                moves = True
        return moves

    def _complete(self, rank: int) -> bool:
        moves = False
        for issued in self.issued[rank]:
            if issued.started is not None and issued.completed is None and self._ends_now(issued):
                issued.completed = self.now
                moves = True
        return moves

    def _ends_now(self, issued: Issued) -> bool:
        call = issued.call
        if call.number in self._broken:
            return False
        if not call.is_message:
            members = self._members[call.communicator, issued.collective]
            return (
                set(members) == set(call.communicator.ranks)
                and all(one.started is not None for one in members.values())
                and _agree([members[r].call for r in call.communicator.ranks])
            )
        return all(self._is_delivered(issued, place) for place in range(len(call.operations)))

    def _is_delivered(self, issued: Issued, place: int) -> bool:
        operation = issued.call.operations[place]
        sends = operation.name.startswith("send")
        if sends and not issued.call.is_coalesced and operation.elements <= SMALL:
            return True
        both = self._ends[issued.messages[place]]
        if len(both) < 2:
            return False
        (one, sent), (other, received) = both[True], both[False]
        return (
            one.started is not None
            and other.started is not None
            and sent.elements == received.elements
            and sent.kind == received.kind
        )

    def hangs(self) -> bool:
        return any(one.completed is None for made in self.issued.values() for one in made)

    def records(self) -> list[int]:
        """How many entries each rank recorded."""
        return [
            sum(len(one.call.operations) + one.call.is_coalesced for one in made)
            for made in self.issued.values()
        ]

    def _needs(self, rank: int) -> set[int]:
        """The ranks without which a rank does not go on."""
        needs = set()
        for issued in self.issued[rank]:
            if issued.completed is not None:
                continue
            call = issued.call
            if not call.is_message:
                members = self._members[call.communicator, issued.collective]
                needs |= {
                    r
                    for r in call.communicator.ranks
                    if r not in members or members[r].started is None
                }
            else:
                for place, operation in enumerate(call.operations):
                    if not self._is_delivered(issued, place):
                        peer = call.communicator.ranks[operation.peer or 0]
                        both = self._ends[issued.messages[place]]
                        other = both.get(not operation.name.startswith("send"))
                        if other is None or other[0].started is None:
                            needs.add(peer)
        return needs - {rank}

    def circle(self) -> frozenset[int]:
        """The ranks that wait for each other."""
        needs = {rank: self._needs(rank) for rank in self.programs}
        reach = {rank: set(found) for rank, found in needs.items()}
        for _ in needs:
            for near in reach.values():
                near |= {far for rank in set(near) for far in reach[rank]}
        return frozenset(rank for rank in reach if rank in reach[rank])

    def missing_call(self, rank: int) -> Call | None:
        """The first call that the rank did not make though another is in it."""
        waited_for = {
            (one.call.number, one.call.communicator)
            for other, made in self.issued.items()
            for one in made
            if other != rank and one.started is not None and one.completed is None
        }
        for call in self.programs[rank][len(self.issued[rank]) :]:
            if (call.number, call.communicator) in waited_for:
                return call
        return None


def _agree(calls: list[Call]) -> bool:
    """Whether the members of a collective called it alike."""
    if len({(call.is_coalesced, len(call.operations)) for call in calls}) > 1:
        return False
    for operations in zip(*(call.operations for call in calls), strict=True):
        name = operations[0].name
        given, taken = {one.given for one in operations}, {one.taken for one in operations}
        if len({(one.name, one.kind) for one in operations}) > 1:
            return False
        if name == "all_to_all":
            volumes = [_volume(one.given) - _volume(one.taken) for one in operations]
            if sum(volumes) != 0:
                return False
        elif len(given) > 1 or (len(taken) > 1 and name != "gather"):
            return False
    return True


def _volume(shapes: tuple[tuple[int, ...], ...]) -> int:
    return sum(shape[0] for shape in shapes)


# The recorder.


class _Recorder:
    """What one rank's flight recorder has when it is dumped."""

    def __init__(
        self,
        rank: int,
        communicators: list[Communicator],
        run: _Run,
        dice: random.Random,
        size: int,
        has_timing: bool,
        only_active: bool,
    ) -> None:
        self._own = [one for one in communicators if rank in one.ranks]
        self._issued = run.issued[rank]
        self._size, self._has_timing, self._only_active = size, has_timing, only_active
        self._skew_ns = dice.randint(-2 * TICK_NS, 2 * TICK_NS)
        self._gives_up = dice.random() < 0.3
        self._entries: list[dict] = []
        self._counts = {one: [0, 0, 0] for one in self._own}  # collectives, messages, operations
        self._status = {one: [0, -1, 0] for one in self._own}

    def dump(self) -> dict:
        for issued in self._issued:
            call = issued.call
            counts = self._counts[call.communicator]
            counts[1 if call.is_message else 0] += 1
            for operation in call.operations:
                counts[2] += 1
                self._record(issued, operation, None if call.is_coalesced else issued)
            if call.is_coalesced:
                self._record(issued, None, issued)
            status = self._status[call.communicator]
            number = counts[1 if call.is_message else 0]
            status[0] = number
            if issued.completed is not None:
                status[2] = number
            if issued.started is not None and self._has_timing:
                status[1] = number
        kept = self._entries[-self._size :]
        if self._only_active:
            kept = [one for one in kept if one["state"] != "completed"]
        return {
            "version": "2.10",
            "pg_config": {
                one.name: {
                    "name": one.name,
                    "desc": one.description,
                    "ranks": str(list(one.ranks)),
                }
                for one in self._own
            },
            "pg_status": {
                str(place): {
                    "last_enqueued_collective": self._status[one][0],
                    "last_started_collective": self._status[one][1],
                    "last_completed_collective": self._status[one][2],
                }
                for place, one in enumerate(self._own)
                if self._status[one][0]
            },
            "entries": kept,
        }

    def _record(self, issued: Issued, operation: Operation | None, state: Issued | None) -> None:
        call = issued.call
        one, counts = call.communicator, self._counts[call.communicator]
        started = state.started if state is not None and self._has_timing else None
        completed = state.completed if state is not None else None
        is_over = completed is not None
        gave_up = self._gives_up and state is not None and not is_over
        self._gives_up &= not gave_up
        given = operation.given if operation else ()
        taken = operation.taken if operation else ()
        self._entries.append(
            {
                "record_id": len(self._entries),
                "pg_id": self._own.index(one),
                "process_group": (one.name, one.description),
                "collective_seq_id": counts[0],
                "p2p_seq_id": counts[1],
                "op_id": counts[2],
                "profiling_name": f"nccl:{operation.name if operation else call.end_name}",
                "time_created_ns": self._time(issued.created),
                "input_sizes": [list(shape) for shape in given],
                "input_dtypes": [operation.kind] * len(given) if operation else [],
                "output_sizes": [list(shape) for shape in taken],
                "output_dtypes": [operation.kind] * len(taken) if operation else [],
                "state": "completed" if is_over else "started" if started else "scheduled",
                "time_discovered_started_ns": self._time(started),
                "time_discovered_completed_ns": self._time(completed),
                "retired": is_over or gave_up,
                "timeout_ms": 600_000,
                "is_p2p": call.is_message,
                "frames": [
                    {
                        "name": "op",
                        "filename": "/lib/torch/distributed/distributed_c10d.py",
                        "line": 7,
                    },
                    {"name": "step", "filename": "/home/me/train.py", "line": call.line},
                ],
            }
        )

    def _time(self, tick: int | None) -> int | None:
        return None if tick is None else T0_NS + tick * TICK_NS + self._skew_ns
