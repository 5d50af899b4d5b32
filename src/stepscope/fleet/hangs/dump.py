"""One rank's flight recorder dump, in any of the forms that torch has written.

Forms
    A pickle by torch's C++ writer or by Python, or JSON. JSON has 0 where pickles have none,
    numbers as texts in places, and no `entries` where there are none. The oldest dumps are a list
    of entries.
    Versions are compared by their parts: 2.10 follows 2.9.

Definitions
    Group: name and description of the process group, and its ranks where they are told.
    Sequence: number of the operation in its group; collectives and point-to-point operations are
    counted apart.
    State: "completed" where the recorder says so, or where it retired the entry of a backend that
    never says so (gloo), or where the group's status has passed it. "timed out" where the entry was
    retired without. Otherwise "started" or "scheduled", as recorded.
    Times are those of the watchdog's discovery, not of the work itself.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.errors import UnreadableInputError
from stepscope.run.plain_pickle import MOST_BYTES, read_plain_pickle
from stepscope.run.regular_files import read_regular

COMPLETED, TIMED_OUT, STARTED, SCHEDULED = "completed", "timed out", "started", "scheduled"
KNOWN_MAJOR = 2

_PROTOCOL = b"\x80"
"""How a pickle begins, of every protocol but the oldest, which torch does not write."""
_MOST_ENTRIES = 1_000_000
_MOST_RANKS = 1_000_000
_SILENT = ("gloo", "mpi", "ucc")
"""Backends whose entries never become "completed"."""
_PEER = re.compile(r"\b(send|recv) (\d{1,9})(->|<-)(\d{1,9})")


@dataclass(frozen=True)
class Group:
    """A process group.

    Attributes:
        name: Its name in the job.
        description: What the job calls it; empty where it does not.
        ranks: Its ranks; empty where nothing tells them.
    """

    name: str
    description: str = ""
    ranks: tuple[int, ...] = ()

    @property
    def words(self) -> str:
        """How to call it."""
        described = self.description not in {"", "undefined"}
        return f"{self.name} ({self.description})" if described else self.name


@dataclass(frozen=True)
class Entry:
    """One operation of a rank.

    Attributes:
        group: Its process group.
        is_p2p: Whether it is a send or a receive.
        sequence: Its number among its kind in the group.
        operation: "all_reduce", "send", …
        backend: "nccl", "gloo", …; empty where the recorder does not say.
        peer: The other rank of a send or receive, by its number in the group.
        inputs: Shapes and types of the inputs, as text.
        elements: Types of the inputs and how many elements each has, as text. An operation on 64
            elements is the same one for a tensor of 64 and for one of 8×8.
        state: See the module.
        created_ns: When it was called; Unix time.
        started_ns: When the watchdog saw that it had started; None: never.
        place: Its place in the rank's record; later operations have greater ones.
        where: The innermost frame outside torch, "train.py:31 in step"; empty where not recorded.
    """

    group: Group
    is_p2p: bool
    sequence: int
    operation: str
    backend: str
    peer: int | None
    inputs: str
    elements: str
    state: str
    created_ns: int
    started_ns: int | None
    place: int
    where: str

    @property
    def is_waiting(self) -> bool:
        """Whether the rank is still in it, or gave up waiting."""
        return self.state != COMPLETED

    @property
    def signature(self) -> tuple[str, str]:
        """What members of a collective must have in common."""
        varies = self.operation in {"broadcast", "scatter", "gather", "all_to_all", "alltoall"}
        return self.operation, "" if self.is_p2p or varies else self.elements


@dataclass(frozen=True)
class Dump:
    """What one rank recorded.

    Attributes:
        path: Its file.
        rank: Its rank.
        version: As written, such as "2.10".
        groups: The process groups that it lists.
        entries: Its operations, oldest first.
        last_enqueued: Of each group's name, the sequence of the last collective that it called.
        notes: What could not be read.
    """

    path: str
    rank: int
    version: str
    groups: tuple[Group, ...]
    entries: tuple[Entry, ...]
    last_enqueued: Mapping[str, int]
    notes: tuple[str, ...] = ()


def rank_of_dump(path: Path) -> int | None:
    """The rank in a dump's file name: its last number (host names may hold others)."""
    stem = re.sub(r"\.(json|pickle|pkl|pt)$", "", path.name)
    found = re.search(r"(\d{1,9})$", stem)
    return int(found.group(1)) if found else None


def read_dump(path: Path, rank: int | None = None) -> Dump:
    """Reads a dump.

    Args:
        path: Its file.
        rank: Its rank; by default the last number of its name.

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
    number = rank if rank is not None else rank_of_dump(path)
    found = parse_dump(data, 0 if number is None else number, str(path))
    if number is None:  # asked last: a file of another kind needs no other name
        raise UnreadableInputError(
            f"{path}: the name has no rank: call the file, for example, nccl_trace_rank_3"
        )
    return found


def parse_dump(data: bytes, rank: int, name: str) -> Dump:
    """Reads a dump from its bytes.

    Raises:
        UnreadableInputError: As `read_dump`.
    """
    found = _content(data, name)
    if isinstance(found, list):  # the oldest form
        found = {"version": "1", "entries": found}
    if not isinstance(found, dict) or not ({"entries", "pg_config", "version"} & found.keys()):
        raise UnreadableInputError(
            f"{name}: no flight recorder dump: it has no version and no entries"
        )
    notes = []
    version = str(found.get("version", "unknown"))
    if _major(version) > KNOWN_MAJOR:
        notes.append(f"{name}: version {version} is newer than {KNOWN_MAJOR}.x: read as that")
    groups = _groups(found.get("pg_config"))
    status = _status(found.get("pg_status"))
    raw = found.get("entries") or []
    if not isinstance(raw, list):
        raise UnreadableInputError(f"{name}: its entries are no list")
    entries, skipped = [], 0
    for place, one in enumerate(raw[-_MOST_ENTRIES:]):
        entry = _entry(one, place, groups, status) if isinstance(one, dict) else None
        if entry is None:
            skipped += 1
        else:
            entries.append(entry)
    if skipped:
        notes.append(f"{name}: {skipped} entries could not be read")
    enqueued = {group: values["last_enqueued_collective"] for group, values in status.items()}
    return Dump(name, rank, version, tuple(groups.values()), tuple(entries), enqueued, tuple(notes))


def _content(data: bytes, name: str) -> Any:
    if data.lstrip()[:1] in {b"{", b"["}:
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
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
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if value == value and abs(value) < 2**63 else None  # noqa: PLR0124 - NaN
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,19}", value.strip()):
        return int(value)
    return None


def _groups(listed: Any) -> dict[str, Group]:
    """By name. Torch's own tool passes the ranks to `eval`; here they are numbers in a text."""
    found = {}
    for key, one in listed.items() if isinstance(listed, dict) else ():
        if not isinstance(one, dict):
            continue
        name = str(one.get("name", key))
        text = str(one.get("ranks", ""))[: 12 * _MOST_RANKS]
        ranks = tuple(int(rank) for rank in re.findall(r"\d{1,9}", text))
        found[name] = Group(name, str(one.get("desc", "")), ranks)
    found.pop("", None)
    return found


def _status(listed: Any) -> dict[str, dict[str, int]]:
    found = {}
    names = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
    for key, one in listed.items() if isinstance(listed, dict) else ():
        if isinstance(one, dict):
            values = {name: _number(one.get(name)) for name in names}
            found[str(key)] = {
                name: -1 if value is None else value for name, value in values.items()
            }
    return found


def _entry(
    one: dict[Any, Any],
    place: int,
    groups: dict[str, Group],
    status: dict[str, dict[str, int]],
) -> Entry | None:
    is_p2p = bool(one.get("is_p2p", False))
    numbers = (
        [one.get("p2p_seq_id")] if is_p2p else [one.get("collective_seq_id"), one.get("seq_id")]
    )
    sequence = next((found for n in numbers if (found := _number(n)) is not None), None)
    if sequence is None:
        return None
    group = _group_of(one, groups)
    profiling = str(one.get("profiling_name", ""))
    backend, _, operation = profiling.rpartition(":")
    peer = None
    if (pair := _PEER.search(operation)) is not None:
        operation, peer = pair.group(1), int(pair.group(4))
    # The key of a group's status is its number in older versions, its name in newer ones.
    known = status.get(group.name) or status.get(str(one.get("pg_id"))) or {}
    return Entry(
        group=group,
        is_p2p=is_p2p,
        sequence=sequence,
        operation=operation or "unknown",
        backend=backend,
        peer=peer,
        inputs=_inputs(one, _shape),
        elements=_inputs(one, _count),
        state=_state(
            one, backend, -1 if is_p2p else known.get("last_completed_collective", -1), sequence
        ),
        created_ns=_number(one.get("time_created_ns")) or 0,
        started_ns=_number(one.get("time_discovered_started_ns")) or None,
        place=place,
        where=_where(one.get("frames")),
    )


def _group_of(one: dict[Any, Any], groups: dict[str, Group]) -> Group:
    told = one.get("process_group")
    if isinstance(told, (list, tuple)) and told:
        name, description = str(told[0]), str(told[1]) if len(told) > 1 else ""
    else:
        name, description = str(one.get("pg_id", "0")), ""
    listed = groups.get(name)
    if listed is None:
        return Group(name, description)
    told_there = listed.description not in {"", "undefined"}
    return Group(name, listed.description if told_there else description, listed.ranks)


def _state(one: dict[Any, Any], backend: str, last_completed: int, sequence: int) -> str:
    recorded = str(one.get("state", ""))
    if recorded == COMPLETED or _number(one.get("time_discovered_completed_ns")):
        return COMPLETED
    if last_completed >= sequence:
        return COMPLETED
    if one.get("retired"):
        return COMPLETED if backend.startswith(_SILENT) else TIMED_OUT
    return STARTED if recorded == STARTED else SCHEDULED


def _shape(lengths: Sequence[Any]) -> str:
    return "×".join(str(_number(length)) for length in lengths[:16])


def _count(lengths: Sequence[Any]) -> str:
    return str(math.prod(_number(length) or 0 for length in lengths[:16]))


def _inputs(one: dict[Any, Any], write: Callable[[Sequence[Any]], str]) -> str:
    """Each input with its type and its size, which `write` puts into words."""
    sizes, types = one.get("input_sizes"), one.get("input_dtypes")
    shapes = [
        write(shape)
        for shape in (sizes[:64] if isinstance(sizes, list) else [])
        if isinstance(shape, (list, tuple))
    ]
    words = [str(kind) for kind in (types[:64] if isinstance(types, list) else [])]
    return ", ".join(
        f"{words[place] if place < len(words) else ''}[{shape}]"
        for place, shape in enumerate(shapes)
    )


def _where(frames: Any) -> str:
    """The innermost frame outside torch; the innermost where all are of torch."""
    best = ""
    for frame in frames[:256] if isinstance(frames, list) else ():
        if not isinstance(frame, dict):
            continue
        filename = str(frame.get("filename", ""))
        text = (
            f"{filename.rpartition('/')[2]}:{_number(frame.get('line'))} in {frame.get('name', '')}"
        )
        best = best or text
        if "/torch/" not in filename:
            return text
    return best
