"""The step record: one line of JSON per training step, always on, readable at any time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import orjson

from stepscope.run.files import open_regular, read_regular
from stepscope.run.layout import RING_FILE
from stepscope.run.side_json import parse_json, utf8_json
from stepscope.run.step_ring import USUAL_PHASES, read_ring

DATA_WAIT_RANGE = "stepscope.data_wait"
"""Name in a trace of the wait of `profiler.watch` for the next batch."""
SHOWN_RANGES = {DATA_WAIT_RANGE: "wait for the batch"}
"""What answers call ranges that Stepscope writes: no name of ours is a part of a training."""

FORWARD, BACKWARD, OPTIMIZER = USUAL_PHASES
COMMUNICATION = "communication"
SAVING = "saving"
"""Names of phases that are detected from torch, or from a framework."""

END_OF_EPOCH = "the end of an epoch"
"""The wait that finds no more batches, in which workers end: a kind, or a part of the evaluation
that follows the first one."""

OF_OPTION = "stepscope option "
"""How names of phases, and places of calls, begin that an option of Stepscope causes."""

TRAIN = "train"
EVALUATION = "evaluation"
CHECKPOINT = "checkpoint"
"""Kinds of steps."""

ITERATION = "iteration"
MICRO_BATCH = "micro-batch"
OPTIMIZER_STEP = "optimizer step"
STEP_UNITS = (ITERATION, MICRO_BATCH, OPTIMIZER_STEP)
"""Units of a step."""

BATCH_FUNCTIONS = frozenset(
    f"{verb}_{what}"
    for verb in (
        *("get", "fetch", "load", "read", "next", "sample", "draw"),
        *("make", "generate", "gen", "create", "build", "prepare"),
    )
    for what in ("data", "batch", "batches")
)
"""Names of functions, and of phases, that make a batch."""
INPUT_PHASES = BATCH_FUNCTIONS | {
    *("data", "input", "data_wait", "dataload", "dataloading", "dataloader", "data_loading"),
    *("load", "fetch"),
}
"""Names of phases that count as the wait for the batch."""
MOST_PHASE_NAMES = 256
"""Names of phases that a record tells apart: names that count (`f"batch {i}"`) are no phases."""
MORE_PHASES = "more phases"
"""The name of all others."""
_MOST_BYTES = 4_000_000_000
_LATEST_NS = 2**62
"""In the year 2116."""
_LARGEST = 1e300
"""Of a number that others are compared with."""
_LINE_BYTES = 1024
"""More than the length of a line with a dozen phases."""


@dataclass(frozen=True)
class StepRecord:
    """One step as the training process saw it.

    Attributes:
        step: Number of the step, counted from 0 at the start of the capture. Work outside any step
            (an evaluation between two of them) has the number of the step after it.
        start_ns: Start, in nanoseconds since the epoch. The rank's epoch time is read once and
            advanced by the monotonic clock, so it never jumps.
        dur_ns: Duration on the training thread, up to the start of the next step.
        data_wait_ns: Time in which the training thread waited for its batch; 0 if the loop
            does not use `watch`.
        phases: Duration of each phase in nanoseconds. A phase inside another is named
            "outer/inner", and its duration is part of the outer one's.
        kind: "train", or another kind that the loop set ("evaluation", "checkpoint").
        is_partial: The step did not end at a step boundary, because the loop ended in it.
        window: Index of the window that recorded this step in detail, or whose preparation slowed
            the step noticeably; None for other steps.
        cpu_ns: Time that the training thread ran on a CPU; None if it is unknown.
        queued_ns: Time that the training thread was ready to run while other threads or processes
            had the CPUs; None if the system does not say (Linux does).
        data_wait_cpu_ns: The part of `data_wait_ns` in which the training thread ran on a CPU, or
            waited for one, because it made the batch itself.
        loader_workers_ns: The part of `data_wait_ns` in which the DataLoader started its worker
            processes, or ended them.
        epoch_start_ns: The part of `data_wait_ns` at the start of DataLoaders' iterators: in
            `iter(loader)`, and in the wait for the first batch.
        sampler_ns: The part of `epoch_start_ns` until the sampler returned the first indices.
        gc_ns: Time in pauses of Python's garbage collector.
        gc_called_ns: The part of `gc_ns` in collections that code requested (`gc.collect()`).
        compile_ns: Time in which torch.compile compiled.
        after_call_ns: The part of the phase forward between the last call of a module and backward,
            where it is long: the loss, and whatever else the loop does there.
        own_ns: Stepscope's own time, where it is long: the search for the modules that the loop
            calls, in one of the first steps.
        tokens: Tokens processed in the step, if the loop said so.
        samples: Samples processed in the step, if the loop said so.
        loss: The last loss that the training logged in the step. Frameworks log between two steps
            what the steps before came to: it is with the step that begins there. After the last
            step, a partial one has it.
        device_ns: Time between the device events recorded at the step's two boundaries on the
            current stream, if there is a GPU.
        device_phases: The same for each phase, between its beginning and its end. It excludes work
            of the phase on other streams.
        peak_allocated_bytes: Peak of allocated memory per device since the process started or
            the user reset it, at the end of the step. Empty without a GPU.
        peak_reserved_bytes: The same for reserved memory.
    """

    step: int
    start_ns: int
    dur_ns: int
    data_wait_ns: int = 0
    phases: dict[str, int] = field(default_factory=dict)
    kind: str = TRAIN
    is_partial: bool = False
    window: int | None = None
    cpu_ns: int | None = None
    queued_ns: int | None = None
    data_wait_cpu_ns: int = 0
    loader_workers_ns: int = 0
    epoch_start_ns: int = 0
    sampler_ns: int = 0
    gc_ns: int = 0
    gc_called_ns: int = 0
    compile_ns: int = 0
    after_call_ns: int = 0
    own_ns: int = 0
    tokens: int | None = None
    samples: int | None = None
    loss: float | None = None
    device_ns: int | None = None
    device_phases: dict[str, int] = field(default_factory=dict)
    peak_allocated_bytes: tuple[int, ...] = ()
    peak_reserved_bytes: tuple[int, ...] = ()

    @property
    def is_whole_step(self) -> bool:
        """Whether this is a complete training step."""
        return self.kind == TRAIN and not self.is_partial


def is_input_phase(name: str) -> bool:
    """Whether a phase of this name is the wait for the batch, and so counts as input."""
    return name.lower() in INPUT_PHASES


def input_wait(record: StepRecord) -> int:
    """Wait for the batch: what `watch` measured, plus phases with its name."""
    waited = sum(ns for name, ns in record.phases.items() if is_input_phase(name))
    return min(record.dur_ns, record.data_wait_ns + waited)


def step_of(given: Mapping[str, Any]) -> StepRecord:
    """The record with these fields: as `StepRecord(**given)`, in a quarter of the time."""
    record = object.__new__(StepRecord)
    vars(record).update(_DEFAULTS, **given)
    return record


def encode_step(record: StepRecord) -> bytes:
    """One line of JSON with its newline. Fields with default values are left out, but for some."""
    return encode_fields(vars(record))


def encode_fields(given: Mapping[str, Any]) -> bytes:
    """The same of fields that a record is made of."""
    line = {
        name: value for name, value in given.items() if name in _ALWAYS or value != _DEFAULTS[name]
    }
    return utf8_json(line, orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS)


def decode_step(line: bytes) -> StepRecord:
    """The record in one line.

    Raises:
        ValueError: The line is not a step record; the message says why.
    """
    data = parse_json(line)
    if not isinstance(data, dict):
        raise ValueError("not an object")
    return _record_of(data)


def _record_of(data: dict[str, Any]) -> StepRecord:
    missing = next((name for name in _REQUIRED if name not in data), None)
    if missing is not None:
        raise ValueError(f"the key {missing!r} is missing")
    try:
        return StepRecord(**{name: _READ[name](data[name]) for name in _READ if name in data})
    except TypeError as error:
        raise ValueError(str(error)) from error


def read_steps(path: Path) -> tuple[list[StepRecord], list[str]]:
    """All records of a `steps.jsonl`, and what was skipped.

    Of phases, `MOST_PHASE_NAMES` are told apart; the others are added up, and reported.

    A killed process can leave a last line without a newline. It is skipped and reported like any
    other line that cannot be read, unless the step is in the ring beside the file, as are the steps
    after it. A missing file has no records.
    """
    # The ring first: what is written to the file in between is then in both.
    ring = _ring_records(path)
    try:
        data = read_regular(path, _MOST_BYTES)
    except FileNotFoundError:
        return [], []
    except OSError as error:
        return [], [f"{path.name}: cannot be read: {error.strerror or error}"]
    lines = data.split(b"\n")
    records: list[StepRecord] = []
    problems: list[str] = []
    names: set[str] = set()
    has_more = False
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = decode_step(line)
        except ValueError as error:
            if number < len(lines) or not _unwritten(ring, records):
                problems.append(f"{path.name} line {number}: skipped, {error}")
            continue
        if not names.issuperset(record.phases):
            record = _with_few_phases(record, names)
            has_more = has_more or not names.issuperset(record.phases)
        records.append(record)
    if has_more:
        problems.append(
            f"{path.name}: of the names of phases, {MOST_PHASE_NAMES} are kept; others are "
            f"'{MORE_PHASES}': give each phase one name, without numbers"
        )
    return records + _unwritten(ring, records), problems


def _with_few_phases(record: StepRecord, names: set[str]) -> StepRecord:
    """The record with no more names than may be known; adds its new ones to those that are."""
    for name in record.phases:
        if len(names) < MOST_PHASE_NAMES:
            names.add(name)
    return replace(
        record,
        phases=_known_phases(record.phases, names),
        device_phases=_known_phases(record.device_phases, names),
    )


def _known_phases(phases: dict[str, int], names: set[str]) -> dict[str, int]:
    """Phases by known names. What lies in one that is not known is part of the others' time."""
    found: dict[str, int] = {}
    for path, duration_ns in phases.items():
        outer, slash, _ = path.partition("/")
        if path in names:
            name = path
        elif not slash:
            name = MORE_PHASES
        elif outer in names:
            name = f"{outer}/{MORE_PHASES}"
        else:
            continue
        found[name] = found.get(name, 0) + duration_ns
    return found


def read_last_steps(path: Path, most: int = 64, *, with_ring: bool = True) -> list[StepRecord]:
    """About the last `most` records of a `steps.jsonl` that may still grow; none if it is missing.

    At most one kilobyte per record is read, however long the file is. Lines that cannot be read
    are left out.
    """
    ring = _ring_records(path) if with_ring else []
    try:
        with open_regular(path) as file:
            size = file.seek(0, 2)
            start = max(0, size - most * _LINE_BYTES)
            file.seek(start)
            data = file.read(size - start)
    except OSError:
        return []
    lines = data.split(b"\n")[1 if start else 0 :]
    records = []
    for line in lines[-most - 1 :]:
        with contextlib.suppress(ValueError):
            records.append(decode_step(line))
    return (records + _unwritten(ring, records))[-most:]


def complete_steps(path: Path) -> None:
    """Add what a killed process left in its ring to its `steps.jsonl`, and remove the ring."""
    ring = path.with_name(RING_FILE)
    if not ring.exists():
        return
    if path.exists():
        missing = _unwritten(_ring_records(path), read_last_steps(path, with_ring=False))
        with path.open("r+b") as file:
            size = file.seek(0, 2)
            start = max(0, size - 64 * _LINE_BYTES)
            file.seek(start)
            end = file.read().rfind(b"\n") + 1
            if end or not start:
                file.truncate(start + end)
            file.seek(0, 2)
            file.write(b"".join(map(encode_step, missing)))
    ring.unlink(missing_ok=True)


def _ring_records(path: Path) -> list[StepRecord]:
    records = []
    for found in read_ring(path.with_name(RING_FILE)):
        with contextlib.suppress(ValueError):
            records.append(_record_of(found))
    return records


def _unwritten(ring: list[StepRecord], records: list[StepRecord]) -> list[StepRecord]:
    """The steps of a ring that begin after the last one of the file."""
    last_ns = records[-1].start_ns if records else -1
    return [record for record in ring if record.start_ns > last_ns]


def _whole(value: object, most: int = 2**53) -> int:
    """A whole number that can be added to others without leaving 64 bits."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{str(value)[:40]!r} is not a whole number")
    if abs(value) > most:
        raise TypeError(f"{value} is too large")
    return value


def _optional(value: object) -> int | None:
    return None if value is None else _whole(value)


def _finite(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{str(value)[:40]!r} is not a number")
    return float(value) if abs(value) < _LARGEST else None


def _each(value: Any) -> tuple[int, ...]:
    return tuple(map(_whole, value))


def _phases(value: Any) -> dict[str, int]:
    return {str(name): _whole(ns) for name, ns in dict(value).items()}


_REQUIRED = ("step", "start_ns", "dur_ns")
_ALWAYS = frozenset({*_REQUIRED, "data_wait_ns"})
_DEFAULTS = vars(StepRecord(0, 0, 0))
_OF_TYPE: dict[str, Callable[[Any], Any]] = {
    "int": _whole,
    "int | None": _optional,
    "float | None": _finite,
    "bool": bool,
    "str": str,
    "dict[str, int]": _phases,
    "tuple[int, ...]": _each,
}
_READ = {one.name: _OF_TYPE[str(one.type)] for one in fields(StepRecord)}
"""What reads each field of a line."""
_READ["start_ns"] = lambda value: _whole(value, _LATEST_NS)
