"""The newest steps of a run, in a file that survives the death of its process: `steps.ring`.

The process that trains reads its clocks at each boundary of a step and puts the *reading* there at
once, by a copy into mapped memory. One of its threads makes lines of `steps.jsonl` of them once a
second. So a killed process leaves steps here that are not in that file, and `read_ring` makes them
of the readings in the same way.

The file begins with `_HEADER`. Slots of `SLOT` follow, up to `TEXT_START`, and then lines of JSON
with what is special about some of the steps: `[now_ns, {fields of the step}, now_ns]`. New slots
and lines replace the oldest ones. Each has its time at both ends, which shows that it is whole.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

RING_BYTES = 1 << 19
TEXT_START = 1 << 18
SLOT = struct.Struct("=17q")
"""A reading, in the machine's byte order: the monotonic clock in nanoseconds; the number of the
step that ends; the CPU time of the thread; the time in which it waited for CPUs and one, 0 for
unknown; the totals of garbage collections, of those that code asked for, and of compilations; the
step's wait for its batch, and how much of that needed a CPU; flags, with the window's index and one
in the bits from `WINDOW_BIT` on; what most steps have, -1 for none: the times of `USUAL_PHASES`,
the part of forward after the call, tokens, and samples; and the monotonic clock again."""
USUAL_PHASES = ("forward", "backward", "optimizer")
AFTER_CALL = "after_call_ns"
"""The field of the part of forward that follows the last call of a module."""
_LEAST_AFTER_NS, _LEAST_AFTER = 100_000, 0.2
"""A shorter part, in itself or of forward, as the loss of most models, is forward and no more."""
NO_PHASES: tuple[int, ...] = (-1, -1, -1, -1)
"""The times of a step without phases, or whose phases stand in its line of text."""
NOTHING: tuple[int, ...] = (*NO_PHASES, -1, -1)
"""The values of a step that has nothing of what most steps have."""
SLOT_BYTES = SLOT.size
_SLOT = SLOT_BYTES // 8
"""The length of a slot, as those below, in integers."""
BEGINS, ANEW, PARTIAL, DETAILED = 1, 2, 4, 8
"""Flags: no step ends here, but one begins; the thread is another one than before; the step did not
end at a boundary; a line of text belongs to it."""
WINDOW_BIT = 8
_SLOTS_END = TEXT_START // SLOT_BYTES * _SLOT
_TURN = 512 * _SLOT
"""How much is written before the writer must have read what is older."""
_HALF_OF_TEXT = (RING_BYTES - TEXT_START) // 2
_HEADER = struct.Struct("=2q")
_MAGIC = int.from_bytes(b"steps 3\n", "little")
"""On a machine of another byte order, it is another number."""
_MAPPED = frozenset({"ext2", "ext3", "ext4", "xfs", "tmpfs", "overlay", "f2fs"})
"""File systems where a page that was reserved can always be written: elsewhere, a full disk or a
lost server would end the process with a signal."""

Reading = Sequence[Any]
"""The values of a slot, and a dictionary with more fields of the step, or None."""


class StepDecoder:
    """Makes steps of readings."""

    def __init__(self, epoch_offset_ns: int) -> None:
        self._epoch_offset_ns = epoch_offset_ns
        self._before: Reading | None = None
        self._queued_later_ns = 0

    def begin(self, reading: Reading | None) -> None:
        """Let the next step begin with this reading."""
        self._before = reading

    def fields(self, reading: Reading) -> dict[str, Any] | None:
        """The fields of the `StepRecord` that ends with a reading; None if it only begins one."""
        before, self._before = self._before, reading
        now_ns, step, ran_ns, waited_ns, gc_ns, called_ns, compile_ns = reading[:7]
        wait_ns, wait_cpu_ns, flags, *usual_ns, after_ns, tokens, samples = reading[7:16]
        if before is None or flags & BEGINS:
            self._queued_later_ns = 0
            return None
        dur_ns = now_ns - before[0]
        cpu_ns = None if flags & ANEW else ran_ns - before[2]
        found = {
            "step": step,
            "start_ns": before[0] + self._epoch_offset_ns,
            "dur_ns": dur_ns,
            "data_wait_ns": wait_ns,
            "is_partial": bool(flags & PARTIAL),
            "window": (flags >> WINDOW_BIT) - 1 if flags >> WINDOW_BIT else None,
            "cpu_ns": cpu_ns,
            "queued_ns": self._queued_ns(before[3], waited_ns, dur_ns, cpu_ns),
            "data_wait_cpu_ns": min(wait_cpu_ns, wait_ns),
            "gc_ns": gc_ns - before[4],
            "gc_called_ns": called_ns - before[5],
            "compile_ns": min(compile_ns - before[6], dur_ns),
        }
        phases = {name: ns for name, ns in zip(USUAL_PHASES, usual_ns, strict=True) if ns >= 0}
        if phases:
            found["phases"] = phases
        if tokens >= 0:
            found["tokens"] = tokens
        if samples >= 0:
            found["samples"] = samples
        details = reading[-1]
        if details:
            found.update(details)
            after_ns = found.pop(AFTER_CALL, 0)
        if after_ns >= _LEAST_AFTER_NS:
            forward_ns = found.get("phases", {}).get("forward", 0)
            if after_ns >= _LEAST_AFTER * forward_ns:
                found[AFTER_CALL] = after_ns
        return found

    def _queued_ns(
        self, before_ns: int, after_ns: int, dur_ns: int, cpu_ns: int | None
    ) -> int | None:
        """How long the thread waited for a CPU; None if the system does not say."""
        later_ns, self._queued_later_ns = self._queued_later_ns, 0
        if cpu_ns is None or not before_ns or after_ns < before_ns:
            return None
        waited_ns = after_ns - before_ns + later_ns
        # The thread may lose its CPU after the step has ended: that is the next one's.
        queued_ns = min(waited_ns, max(0, dur_ns - cpu_ns))
        self._queued_later_ns = waited_ns - queued_ns
        return queued_ns


class Ring:
    """Memory of `RING_BYTES` bytes.

    Args:
        descriptor: A file that is mapped, so that it outlives the process; None for memory alone.

    Attributes:
        turned: Called before what is old is overwritten.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self.is_file = descriptor is not None
        self.turned: Callable[[], object] = bool
        self._memory: Any = bytearray(RING_BYTES)
        if descriptor is not None:
            self._memory = mmap.mmap(descriptor, RING_BYTES)
            os.close(descriptor)
        self._integers = memoryview(self._memory).cast("q")
        self._at = _SLOT
        self._turns_at = _SLOT + _TURN
        self._text_at = TEXT_START
        self._text_end = TEXT_START + _HALF_OF_TEXT

    def put(self, row: Reading) -> None:
        """Put a reading into it."""
        at, to = self._at, self._integers
        self._at = at + _SLOT
        # One by one: each step of the training calls this, its own work has pushed code out of the
        # CPU's caches, and to fetch what packs a structure takes twice as long. No signal's handler
        # runs between two of them.
        try:  # noqa: SIM105 - for the same reason
            (
                to[at],
                to[at + 1],
                to[at + 2],
                to[at + 3],
                to[at + 4],
                to[at + 5],
                to[at + 6],
                to[at + 7],
                to[at + 8],
                to[at + 9],
                to[at + 10],
                to[at + 11],
                to[at + 12],
                to[at + 13],
                to[at + 14],
                to[at + 15],
                to[at + 16],
                _,
            ) = row
        except ValueError:
            pass  # closed, or a number too large
        if at >= self._turns_at:
            self.turn()

    def turn(self) -> None:
        """Announce that older readings will be overwritten, and begin again after the last slot."""
        self.turned()
        if self._at == _SLOTS_END:
            self._at = _SLOT
        self._turns_at = min(self._at + _TURN, _SLOTS_END - _SLOT)

    def put_text(self, now_ns: int, details: dict[str, Any]) -> None:
        """Put what is special about a step into it, with the time of the reading at its end."""
        try:
            line = orjson.dumps((now_ns, details, now_ns), None, orjson.OPT_APPEND_NEWLINE)
            at = self._text_at
            end = at + len(line)
            if end > self._text_end:
                self.turned()
                is_second = self._text_end == RING_BYTES
                at = TEXT_START if is_second else self._text_end
                end = at + len(line)
                self._text_end = at + _HALF_OF_TEXT
                if end > self._text_end:
                    return
            self._write(at, line)
            self._text_at = end
        except (OSError, ValueError, TypeError, IndexError):
            pass  # it is not kept for the case of a kill; it is written all the same

    def _write(self, at: int, data: bytes) -> None:
        self._memory[at : at + len(data)] = data

    def close(self) -> None:
        """Free the file."""
        self._integers.release()
        self._memory.close()


class _WrittenRing(Ring):
    """A file that is written by calls to the system."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self.is_file = True
        self._descriptor = descriptor

    def put(self, row: Reading) -> None:
        with contextlib.suppress(OSError, struct.error):
            self._write(8 * self._at, SLOT.pack(*row[:-1]))
        super().put(row)

    def _write(self, at: int, data: bytes) -> None:
        os.pwrite(self._descriptor, data, at)

    def close(self) -> None:
        os.close(self._descriptor)


def create_ring(path: Path, epoch_offset_ns: int) -> Ring | None:
    """A new ring; None where the system has none, or no space for it."""
    if not hasattr(os, "posix_fallocate"):
        return None
    descriptor = -1
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        os.posix_fallocate(descriptor, 0, RING_BYTES)
        os.pwrite(descriptor, _HEADER.pack(_MAGIC, epoch_offset_ns), 0)
        is_mapped = _file_system(path) in _MAPPED
        return Ring(descriptor) if is_mapped else _WrittenRing(descriptor)
    except (OSError, ValueError):
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                path.unlink()
            os.close(descriptor)
        return None


def read_ring(path: Path) -> list[dict[str, Any]]:
    """The fields of the steps in a ring that are whole, by their start; none without a ring."""
    try:
        with path.open("rb") as file:
            data = file.read(RING_BYTES)
    except OSError:
        return []
    if len(data) < RING_BYTES or _HEADER.unpack_from(data)[0] != _MAGIC:
        return []
    details: dict[int, Mapping[str, Any]] = {}
    for line in data[TEXT_START:].split(b"\n"):
        with contextlib.suppress(ValueError, TypeError):
            now_ns, fields, again_ns = orjson.loads(line)
            if isinstance(fields, dict) and isinstance(now_ns, int) and now_ns == again_ns:
                details[now_ns] = fields
    slots = SLOT.iter_unpack(data[SLOT_BYTES : 8 * _SLOTS_END])
    decoder = StepDecoder(_HEADER.unpack_from(data)[1])
    steps = []
    wanted: int | None = None
    whole = (slot for slot in slots if slot[0] == slot[-1] > 0)
    for slot in sorted(whole, key=lambda slot: slot[0]):
        now_ns, number, flags = slot[0], slot[1], slot[9]
        if number != wanted:  # the reading before is not there
            decoder.begin(None)
        wanted = number if flags & BEGINS else number + 1
        fields = decoder.fields((*slot, details.get(now_ns)))
        if fields is not None and (now_ns in details or not flags & DETAILED):
            steps.append(fields)
    return steps


def _file_system(path: Path) -> str:
    """The kind of file system that a path lies on; empty if unknown."""
    place = os.path.realpath(path)
    kind, longest = "", -1
    try:
        lines = Path("/proc/self/mounts").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        words = line.split(" ")
        point = words[1].replace("\\040", " ") if len(words) > 2 else ""
        is_above = point in {"/", place} or place.startswith(f"{point}/")
        if point and is_above and len(point) >= longest:
            kind, longest = words[2], len(point)
    return kind
