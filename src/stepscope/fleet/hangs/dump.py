"""One rank's flight recorder dump, in any of the forms that torch has written.

Forms
    A pickle by torch's C++ writer or by Python, or JSON. JSON has 0 where pickles have none,
    numbers as texts in places, and no `entries` where there are none. The oldest dumps are a list
    of entries.
    Versions are compared by their parts: 2.10 follows 2.9.

Definitions
    Group: name and description of the process group, and its ranks where they are listed.
    Sequence: number of the operation in its group. Collectives have the same number on all ranks.
    Sends and receives are counted apart, by each rank for all its peers: their numbers say in which
    order a rank called them, not which send belongs to which receive.
    State: "completed" where the recorder says so, or where it retired the entry of a backend that
    never says so (gloo). "timed out" where the entry was retired without. Otherwise "started" or
    "scheduled", as recorded. An operation inside a coalesced group stays "scheduled" for ever: the
    state is in the group's own entry, which comes last.
    A state is "started" only with TORCH_NCCL_ENABLE_TIMING=1.
    The numbers in `pg_status` are not used: they count sends and receives with the collectives.
    Times are those of the watchdog's discovery, not of the work itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from stepscope.errors import UnreadableInputError
from stepscope.fleet.hangs.plain_pickle import MOST_BYTES, read_plain_pickle
from stepscope.run.files import read_regular
from stepscope.run.side_json import LARGEST, parse_json

COMPLETED, TIMED_OUT, STARTED, SCHEDULED = "completed", "timed out", "started", "scheduled"
KNOWN_MAJOR = 2

_PROTOCOL = b"\x80"
"""How a pickle begins, of every protocol but the oldest, which torch does not write."""
_MOST_ENTRIES = 1_000_000
_MOST_SHOWN = 64
_MOST_RANKS = 1_000_000
_MOST_CHARACTERS = 1_000
_MOST_LENGTHS = 2_000_000
"""Lengths of tensors in one dump that are read, however often a pickle repeats them."""
_NAMED = (b"entries", b"pg_config")
"""What every dump has in it, in whatever form."""
_SILENT = ("gloo", "mpi", "ucc")
"""Backends whose entries never become "completed"."""
Tensors = tuple[tuple[str, tuple[int, ...]], ...]
Elements = tuple[tuple[str, int], ...]
_PEER = re.compile(r"\b(send|recv) (\d{1,9})(->|<-)(\d{1,9})")


@dataclass(frozen=True, slots=True)
class Group:
    """A process group.

    Attributes:
        description: What the job calls it; empty where it does not.
        ranks: Its ranks; empty where nothing lists them.
    """

    name: str
    description: str = ""
    ranks: tuple[int, ...] = ()

    def __hash__(self) -> int:
        return hash(self.name)  # groups of the same name are few, and have many ranks

    @property
    def label(self) -> str:
        """How to call it."""
        described = self.description not in {"", "undefined"}
        return f"{self.name} ({self.description})" if described else self.name


@dataclass(frozen=True, slots=True)
class Entry:
    """One operation of a rank.

    Attributes:
        is_p2p: Whether it is a send or a receive.
        sequence: Its number among its kind in the group.
        numbers: The group's numbers of collectives and of sends and receives at its call; the
            operations of a coalesced group share them.
        operation: "all_reduce", "send", …
        backend: "nccl", "gloo", …; empty where the recorder does not say.
        peer: The other rank of a send or receive, by its number in the group.
        given: Types and shapes of the inputs; None where not recorded.
        taken: Those of the outputs.
        state: See the module.
        created_ns: When it was called; Unix time.
        started_ns: When the watchdog saw that it had started; None: never.
        place: Its place in the rank's record; later operations have greater ones.
        where: The innermost frame outside torch, "train.py:31 in step"; empty where not recorded.
    """

    group: Group
    is_p2p: bool
    sequence: int
    numbers: tuple[int, int]
    operation: str
    backend: str
    peer: int | None
    given: Tensors | None
    taken: Tensors | None
    state: str
    created_ns: int
    started_ns: int | None
    place: int
    where: str

    @property
    def inputs(self) -> str:
        """Types and shapes of the inputs, as text."""
        return _describe(self.given)

    @property
    def outputs(self) -> str:
        """Types and shapes of the outputs, as text."""
        return _describe(self.taken)

    @property
    def input_elements(self) -> Elements | None:
        """Type and number of elements of each input; None where not recorded.

        An operation on 64 elements is the same one for a tensor of 64 and for one of 8×8.
        """
        return _elements(self.given)

    @property
    def output_elements(self) -> Elements | None:
        """Type and number of elements of each output; None where not recorded."""
        return _elements(self.taken)

    @property
    def ends_group(self) -> bool:
        """Whether it is the entry of a coalesced group, which comes after its operations."""
        name = self.operation
        return not self.given and (name == "coalesced" or name.endswith("_coalesced"))


@dataclass(frozen=True)
class Dump:
    """What one rank recorded.

    Attributes:
        entries: Its operations, oldest first.
        is_from_start: Whether nothing was overwritten.
        is_filtered: Whether completed operations were left out (TORCH_INCLUDE_ONLY_ACTIVE).
        notes: What could not be read.
    """

    path: str
    rank: int
    version: str
    groups: tuple[Group, ...]
    entries: tuple[Entry, ...]
    is_from_start: bool
    is_filtered: bool
    notes: tuple[str, ...] = ()

    @property
    def records_starts(self) -> bool:
        """Whether it is recorded which operations have started."""
        return any(entry.started_ns is not None for entry in self.entries)


def rank_of_dump(path: Path) -> int | None:
    """The rank in a dump's file name: its last number (host names may hold others)."""
    stem = re.sub(r"\.(json|pickle|pkl|pt)$", "", path.name)
    found = re.search(r"(\d{1,9})$", stem)
    return int(found.group(1)) if found else None


def read_dump(path: Path) -> Dump:
    """Reads a dump.

    Raises:
        UnreadableInputError: It is no flight recorder dump, is damaged, holds more than plain
            values, or does not tell its rank.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UnreadableInputError(f"{path}: too large for a flight recorder dump")
        data = read_regular(path, MOST_BYTES)
    except OSError as error:
        raise UnreadableInputError(f"{path}: {error.strerror or error}") from error
    number = rank_of_dump(path)
    if number is None:
        if not any(name in data for name in _NAMED):  # a file of another kind needs no other name
            raise UnreadableInputError(f"{path}: no flight recorder dump: it has no entries")
        raise UnreadableInputError(
            f"{path}: the name has no rank: call the file, for example, nccl_trace_rank_3"
        )
    return parse_dump(data, number, str(path))


def parse_dump(data: bytes, rank: int, name: str) -> Dump:
    """Reads a dump from its bytes."""
    found = _content(data, name)
    if isinstance(found, list):  # the oldest form
        found = {"version": "1", "entries": found}
    if not isinstance(found, dict) or not ({"entries", "pg_config", "version"} & found.keys()):
        raise UnreadableInputError(
            f"{name}: no flight recorder dump: it has no version and no entries"
        )
    notes = []
    version = _text(found.get("version", "unknown"))
    if _major(version) > KNOWN_MAJOR:
        notes.append(f"{name}: version {version} is newer than {KNOWN_MAJOR}.x: read as that")
    groups = _groups(found.get("pg_config"))
    raw = found.get("entries") or []
    if not isinstance(raw, list):
        raise UnreadableInputError(f"{name}: its entries are no list")
    raw = raw[-_MOST_ENTRIES:]
    entries, skipped = [], 0
    tensors, where = _once(_tensor_reader()), _once(_where)
    read: set[int] = set()
    for place, one in enumerate(raw):
        entry = None
        # A recorder writes each entry; a pickle can say one of them a million times.
        if isinstance(one, dict) and id(one) not in read:
            read.add(id(one))
            entry = _entry(one, place, groups, tensors, where)
        if entry is None:
            skipped += 1
        else:
            entries.append(entry)
    if skipped:
        notes.append(f"{name}: {skipped} entries could not be read")
    records = [number for one in raw if (number := _record(one)) is not None]
    return Dump(
        path=name,
        rank=rank,
        version=version,
        groups=tuple(groups.values()),
        entries=tuple(entries),
        is_from_start=not records or records[0] == 0,
        is_filtered=_is_filtered(records, entries, has_status=bool(found.get("pg_status"))),
        notes=tuple(notes),
    )


def _is_filtered(records: Sequence[int], entries: Sequence[Entry], *, has_status: bool) -> bool:
    """Whether completed operations were left out: none is there, though records are missing.

    A process group has a status once one of its operations was recorded.
    """
    are_missing = any(after > before + 1 for before, after in pairwise(records))
    is_empty = not entries and has_status
    return is_empty or (are_missing and all(entry.state != COMPLETED for entry in entries))


def _record(one: Any) -> int | None:
    """The number of a record, which counts all operations of the process from 0."""
    return _number(one.get("record_id")) if isinstance(one, dict) else None


def _content(data: bytes, name: str) -> Any:
    if data.lstrip()[:1] in {b"{", b"["}:
        try:
            return parse_json(data)
        except ValueError as error:
            raise UnreadableInputError(f"{name}: damaged JSON: {error}") from None
    if not data:
        raise UnreadableInputError(f"{name}: the file is empty")
    try:
        return read_plain_pickle(data, name)
    except UnreadableInputError:
        if data.startswith(_PROTOCOL):
            raise
        raise UnreadableInputError(
            f"{name}: neither a pickle nor JSON, as torch's flight recorder writes its dumps"
        ) from None


def _major(version: str) -> int:
    return _number(version.partition(".")[0]) or 0


def _number(value: Any) -> int | None:
    """A whole number, also one that is written as text."""
    if isinstance(value, bool):
        return None
    is_number = isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,19}", value.strip())
    if is_number or (isinstance(value, float) and math.isfinite(value)):
        value = int(value)
    return value if isinstance(value, int) and abs(value) <= LARGEST else None


def _text(value: Any) -> str:
    """A short text that UTF-8 can hold; empty where the value is neither text nor number.

    Whatever else a pickle holds may contain itself, or take exponential time to be shown.
    """
    if isinstance(value, (int, float)):
        return str(value)
    if not isinstance(value, str):
        return ""
    return value[:_MOST_CHARACTERS].encode("utf-8", "replace").decode("utf-8")


def _groups(listed: Any) -> dict[str, Group]:
    """By name. Torch's own tool passes the ranks to `eval`; here they are numbers in a text."""
    found = {}
    ranks_in = _once(_ranks)
    for key, one in listed.items() if isinstance(listed, dict) else ():
        if not isinstance(one, dict):
            continue
        name = _text(one.get("name", key))
        found[name] = Group(name, _text(one.get("desc", "")), ranks_in(one.get("ranks")))
    found.pop("", None)
    return found


def _ranks(listed: Any) -> tuple[int, ...]:
    text = listed[: 12 * _MOST_RANKS] if isinstance(listed, str) else ""
    return tuple(int(rank) for rank in re.findall(r"[0-9]{1,9}", text))


def _once(read: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that reads each part once, however many others share it.

    The parts must live as long as it does.
    """
    found: dict[tuple[int, ...], Any] = {}

    def read_once(*parts: Any) -> Any:
        key = tuple(map(id, parts))
        if key not in found:
            found[key] = read(*parts)
        return found[key]

    return read_once


def _tensor_reader() -> Callable[[Any, Any], Tensors | None]:
    """Returns a function that reads lengths and types; equal ones are one object."""
    equal: dict[Tensors, Tensors] = {}
    left = _MOST_LENGTHS

    def tensors(sizes: Any, types: Any) -> Tensors | None:
        nonlocal left
        found = _tensors(sizes, types) if left > 0 and isinstance(sizes, list) else None
        if found is None:
            return None
        left -= sum(1 + len(lengths) for _, lengths in found)
        return equal.setdefault(found, found)

    return tensors


def _entry(
    one: dict[Any, Any],
    place: int,
    groups: dict[str, Group],
    tensors: Callable[..., Tensors | None],
    where: Callable[..., str],
) -> Entry | None:
    profiling = _text(one.get("profiling_name", ""))
    backend, _, operation = profiling.rpartition(":")
    peer = None
    if (pair := _PEER.search(operation)) is not None:
        operation, peer = pair.group(1), int(pair.group(4))
    is_p2p = bool(one.get("is_p2p", peer is not None))
    numbers = one.get("collective_seq_id"), one.get("p2p_seq_id")
    candidates = [numbers[is_p2p], one.get("seq_id")]
    sequence = next((found for n in candidates if (found := _number(n)) is not None), None)
    if sequence is None:
        return None
    return Entry(
        group=_group_of(one, groups),
        is_p2p=is_p2p,
        sequence=sequence,
        numbers=(
            (_number(numbers[0]) or 0, _number(numbers[1]) or 0)
            if any(number is not None for number in numbers)
            else (sequence, sequence)
        ),
        operation=operation or "unknown",
        backend=backend,
        peer=peer,
        given=tensors(one.get("input_sizes"), one.get("input_dtypes")),
        taken=tensors(one.get("output_sizes"), one.get("output_dtypes")),
        state=_state(one, backend),
        created_ns=_number(one.get("time_created_ns")) or 0,
        started_ns=_number(one.get("time_discovered_started_ns")) or None,
        place=place,
        where=where(one.get("frames")),
    )


def _group_of(one: dict[Any, Any], groups: dict[str, Group]) -> Group:
    recorded = one.get("process_group")
    if isinstance(recorded, (list, tuple)) and recorded:
        name, description = _text(recorded[0]), _text(recorded[1]) if len(recorded) > 1 else ""
    else:
        name, description = _text(one.get("pg_id", "0")), ""
    listed = groups.get(name)
    if listed is None:
        return Group(name, description)
    recorded_there = listed.description not in {"", "undefined"}
    return Group(name, listed.description if recorded_there else description, listed.ranks)


def _state(one: dict[Any, Any], backend: str) -> str:
    recorded = _text(one.get("state", ""))
    if recorded == COMPLETED or _number(one.get("time_discovered_completed_ns")):
        return COMPLETED
    if one.get("retired"):
        return COMPLETED if backend.startswith(_SILENT) else TIMED_OUT
    return STARTED if recorded == STARTED else SCHEDULED


def _tensors(sizes: list[Any], types: Any) -> Tensors:
    names = types if isinstance(types, list) else []
    return tuple(
        (
            _text(names[place]) if place < len(names) else "",
            tuple(_number(length) or 0 for length in shape[:16]),
        )
        for place, shape in enumerate(sizes)
        if isinstance(shape, (list, tuple))
    )


@lru_cache(maxsize=4096)
def _describe(tensors: Tensors | None) -> str:
    return ", ".join(
        f"{kind}[{'×'.join(map(str, lengths))}]" for kind, lengths in (tensors or ())[:_MOST_SHOWN]
    )


@lru_cache(maxsize=4096)
def _elements(tensors: Tensors | None) -> Elements | None:
    if tensors is None:
        return None
    return tuple((kind, math.prod(lengths)) for kind, lengths in tensors)


def _where(frames: Any) -> str:
    """The innermost frame outside torch; the innermost where all are of torch."""
    best = ""
    for frame in frames[:256] if isinstance(frames, list) else ():
        if not isinstance(frame, dict):
            continue
        filename = _text(frame.get("filename", ""))
        line, name = _number(frame.get("line")), _text(frame.get("name", ""))
        text = f"{filename.rpartition('/')[2]}:{line} in {name}"
        best = best or text
        if "/torch/" not in filename:
            return text
    return best
