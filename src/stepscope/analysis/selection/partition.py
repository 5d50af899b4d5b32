"""A whole divided into parts that add up to it, to the nanosecond."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

INPUT, OTHER = "input", "other"
"""Names of parts that every partition of the training thread's time has."""
BEFORE_BACKWARD = "between forward and backward"
"""The name of what follows the model's call: the loss, or whatever else the loop does there."""
BUSY_PARTS = ("compute", "exposed communication", "exposed copies")
"""Names of the parts of a device's step in which it works."""
IDLE_PREFIX = "idle: "
"""What the names of the parts that are idle time begin with."""

IDLE_LABELS: dict[str, str] = {
    "device_wait": "idle: queued work waits",
    "graph_gap": "idle: inside CUDA graphs",
    "input": "idle: input",
    "synchronisation": "idle: synchronisation",
    "allocation": "idle: allocation",
    "pageable_copy": "idle: pageable copies",
    "annotated_phase": "idle: annotated phase",
    "op_dispatch": "idle: launches and dispatch",
    "cpu_operators": "idle: operators on the CPU",
    "compilation": "idle: compiling or loading kernels",
    "garbage_collection": "idle: garbage collection",
    "waiting_for_communication": "idle: waiting for communication",
    "profiler": "idle: profiler",
    "one_off": "idle: one-off calls",
    "backward": "idle: between operators of backward",
    "not_recorded": "idle: host, cause not recorded",
    "python": "idle: Python",
    "unknown": "idle: cause not recorded",
}
"""Names of the parts that stand for the causes of idle time."""


ONE_OFF = "one_off"
"""The cause of idle time that happens once, and is no part of a step."""


def cause_label(cause: str) -> str:
    """A cause as people read it: "queued work waits" for `device_wait`."""
    known = IDLE_LABELS.get(cause)
    return cause.replace("_", " ") if known is None else known.removeprefix(IDLE_PREFIX)


def cause_labels(causes: Iterable[str | None]) -> list[str | None]:
    """The causes of a column as people read them."""
    return [cause if cause is None else cause_label(cause) for cause in causes]


@dataclass(frozen=True)
class Part:
    """One part of a whole.

    Attributes:
        total_ns: How much, over all the steps of the scope.
    """

    name: str
    total_ns: int


@dataclass(frozen=True)
class Partition:
    """Where the time of some steps went.

    Attributes:
        parts: The parts, which add up to `total_ns` exactly.
        basis: What was divided, in a few words, for the reader of a report.
    """

    parts: tuple[Part, ...]
    total_ns: int
    steps: int
    basis: str

    def __post_init__(self) -> None:
        if sum(part.total_ns for part in self.parts) != self.total_ns:
            raise ValueError(f"the parts of '{self.basis}' do not add up to the whole")

    def share(self, part: Part) -> float:
        """The part's share of the whole, from 0 to 1."""
        return part.total_ns / self.total_ns if self.total_ns else 0.0

    def per_step_ns(self, part: Part) -> int:
        """The part's mean per step, rounded to the nanosecond."""
        return round(part.total_ns / self.steps) if self.steps else 0

    def scaled_to(self, total_ns: int) -> Partition:
        """The same shares of another time; what rounding leaves over goes to the largest part."""
        shares = [part.total_ns * total_ns // max(1, self.total_ns) for part in self.parts]
        largest = max(range(len(shares)), key=lambda i: self.parts[i].total_ns)
        shares[largest] += total_ns - sum(shares)
        parts = tuple(Part(p.name, ns) for p, ns in zip(self.parts, shares, strict=True))
        return Partition(parts, total_ns, self.steps, self.basis)

    def divided(self, name: str, second: str, second_ns: int) -> Partition:
        """The same with so much of a part as another one after it.

        Raises:
            ValueError: There is no part of that name, or it is shorter.
        """
        if second_ns > self.of(name):
            raise ValueError(f"'{name}' is shorter than {second_ns} ns")
        parts: list[Part] = []
        for part in self.parts:
            if part.name == name:
                parts += [Part(name, part.total_ns - second_ns), Part(second, second_ns)]
            else:
                parts.append(part)
        return replace(self, parts=tuple(parts))

    def of(self, name: str) -> int:
        """Total of the part of that name; 0 where there is none."""
        return sum(part.total_ns for part in self.parts if part.name == name)


_CERTAIN = "certain"


def fitted_to_step(
    window: Partition, record: Partition, is_certain: Callable[[str], bool]
) -> Partition:
    """The parts of a device's recorded window in the time of unrecorded steps.

    What these waited for their input beyond all that the device worked, it was idle for it: the
    window may have none of the steps that wait, such as those that begin an epoch.

    Args:
        is_certain: Of the name of a part, whether recording does not change it: the other parts
            take up the difference, as far as they can.
    """
    per_step = record.steps / max(1, window.steps)
    certain = [part for part in window.parts if is_certain(part.name)]
    certain_ns = round(sum(part.total_ns for part in certain) * per_step)
    others_ns = sum(part.total_ns for part in window.parts) - sum(p.total_ns for p in certain)
    if certain_ns >= record.total_ns or not others_ns:
        return replace(window.scaled_to(record.total_ns), steps=record.steps)
    idle_input, waited_ns = IDLE_LABELS["input"], record.of(INPUT) - certain_ns
    usual_ns = (record.total_ns - certain_ns) * window.of(idle_input) / others_ns
    times = {_CERTAIN: certain_ns}
    if waited_ns > usual_ns and window.of(idle_input) < others_ns:
        times[idle_input] = waited_ns
        if not any(part.name == idle_input for part in window.parts):
            window = replace(window, parts=(*window.parts, Part(idle_input, 0)))
    return _in_groups(window, record, lambda name: _CERTAIN if is_certain(name) else name, times)


def with_input_of(window: Partition, record: Partition) -> Partition:
    """The parts of a recorded window in the time of unrecorded steps, with their wait for input.

    A record without any wait for input did not time it, as of a loop that only calls `step()`: the
    window's share of it counts, as that of other parts does.
    """
    others_ns, waited_ns = window.total_ns - window.of(INPUT), record.of(INPUT)
    if not others_ns or (waited_ns and not window.of(INPUT)):
        return record
    times = {INPUT: waited_ns} if waited_ns else {}
    return _in_groups(window, record, lambda name: name, times)


def _in_groups(
    window: Partition,
    record: Partition,
    group_of: Callable[[str], str],
    times: Mapping[str, int],
) -> Partition:
    """The parts of some groups scaled to their times, and the others to the rest of the record's.

    Args:
        group_of: The group that a part of this name belongs to.
    """
    scaled: dict[str, Part] = {}
    grouped: dict[str | None, list[Part]] = {group: [] for group in (*times, None)}
    for part in window.parts:
        of = group_of(part.name)
        grouped[of if of in times else None].append(part)
    rest_ns = record.total_ns - sum(times.values())
    for group, time_ns in (*times.items(), (None, rest_ns)):
        parts = tuple(grouped[group])
        total_ns = sum(part.total_ns for part in parts)
        whole = Partition(parts, total_ns, record.steps, window.basis).scaled_to(time_ns)
        scaled |= {part.name: part for part in whole.parts}
    parts = tuple(scaled[part.name] for part in window.parts)
    return Partition(parts, record.total_ns, record.steps, window.basis)
