"""The ladder: today's step, the step after each fix in order, and the floor of the work.

Definitions
    A rung is the step with everything fixed that stands on it and below it, from one replay of all
    these changes together; savings that overlap are never added up. What was not replayed, because
    its cause has a time of its own, is taken off (`replayed.saved_together`).
    The order is that of the largest saving at each rung. Fixes that bring less than a hundredth of
    the step once those below are made are made together on one rung, or named as bringing nothing.
    Limit: what takes the most time on the critical path of the steps of a rung.
    Above the fixes: the device's limits, where no piece of GPU work takes longer than its floor
    (`analysis.floors`), in the precision in use; the same with products of 32-bit floats in a
    faster type, if that is a fix; and the same again if host, launches and input take no time.
    The last is the floor, if floors are known for at least half of the GPU's time.

`rungs` climbs it. Reports from the cache show it, so this module imports no analysis.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.run.figures import duration, percent

TODAY, OTHERS, DEVICE, PRECISION, HOST = "today", "others", "device", "precision", "host"
"""Ids of rungs that are no finding's."""
SHORT_NAMES = {
    OTHERS: "the others together",
    DEVICE: "GPU work at its floors",
    PRECISION: "products in lower precision",
    HOST: "the host takes no time",
}
"""What the rungs after those of findings are called."""
COMPUTE, COMMUNICATION, COPIES, INPUT, HOST_LIMIT, CPU, FLOOR = (
    "GPU compute",
    "exposed communication",
    "copies",
    "input",
    "host",
    "CPU",
    "floor",
)
_ALL = 0.995
_LIMITS = {
    COMPUTE: "GPU compute limits",
    COMMUNICATION: "exposed communication limits",
    COPIES: "copies limit",
    INPUT: "waiting for input limits",
    HOST_LIMIT: "the host limits",
    CPU: "computation on the CPU limits",
}


@dataclass(frozen=True)
class Rung:
    """The step with some fixes made.

    Attributes:
        id: The finding that is fixed on this rung, or one of the ids above.
        limit_share: What that takes of the step; None for the floor, and where it is not known.
    """

    id: str
    fixed: str
    step_ns: int
    limit: str
    limit_share: float | None
    basis: str

    @property
    def name(self) -> str:
        """What it is called, in few words."""
        return SHORT_NAMES.get(self.id, self.id)

    @property
    def limit_text(self) -> str:
        """What limits the step then, with its share if that is not all of it."""
        if self.limit_share is None or self.limit_share >= _ALL:
            return self.limit
        return f"{self.limit} {percent(self.limit_share)}"


@dataclass(frozen=True)
class Ladder:
    """What comes after each fix, and how far it can go.

    Attributes:
        rungs: From today's step down; empty if there is a reason for none.
        floor_ns: The floor of the work on its device; None if it is not known.
        device: What the device is called; empty if it is not known.
        missing: What is missing for more, and how to record it, in sentences.
        reason: Why there are no rungs; empty where there are some.
        is_whole_file: Whether the trace has no steps: then the whole file is what gets shorter.
    """

    rungs: tuple[Rung, ...] = ()
    floor_ns: int | None = None
    device: str = ""
    rests_on: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    reason: str = ""
    is_whole_file: bool = False

    @property
    def first_fix(self) -> Rung | None:
        """The first rung that fixes a finding alone."""
        return next((rung for rung in self.rungs[1:] if rung.id not in SHORT_NAMES), None)

    @property
    def floor_text(self) -> str:
        """The floor in words; empty if it is not known."""
        if self.floor_ns is None:
            return ""
        where = f" on {self.device}" if self.device else ""
        return f"the floor of this work{where} is {duration(self.floor_ns)}"

    @property
    def next_limit(self) -> str:
        """What limits the step once its first finding is fixed, in one sentence; empty if unknown.

        The floor follows, if it is known.
        """
        if not self.rungs:
            return ""
        step = "the file" if self.is_whole_file else "the step"
        first = self.first_fix
        text = ""
        if first is not None and first.limit in _LIMITS:
            share = ""
            if first.limit_share is not None and first.limit_share < _ALL:
                share = f" ({percent(first.limit_share)})"
            text = (
                f"with {first.id} fixed, {step} takes {duration(first.step_ns)}, and "
                f"{_LIMITS[first.limit]} it{share}"
            )
        floor = self.floor_text
        return f"{text}; {floor}" if text and floor else text or floor
