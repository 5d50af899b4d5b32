"""The result of a check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class State(str, Enum):
    """The state of a check."""

    OK = "ok"
    WARNING = "warning"
    """Recording works, but something will be missing, slow or misleading."""
    PROBLEM = "problem"
    """Recording, or reading, will fail."""
    ABSENT = "absent"
    """Something optional is missing; this is not an error."""


@dataclass(frozen=True)
class Check:
    """One line of the doctor's output. Any state but ok has a remedy."""

    area: str
    name: str
    state: State
    detail: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if self.state is not State.OK and not self.remedy:
            raise ValueError(f"the check '{self.name}' is {self.state.value} and has no remedy")


def ok(name: str, detail: str) -> Check:
    """A check that found nothing wrong; `examine` gives each its area."""
    return Check("", name, State.OK, detail)


def warning(name: str, detail: str, remedy: str) -> Check:
    """A check that found something which makes recordings incomplete, slow or misleading."""
    return Check("", name, State.WARNING, detail, remedy)


def problem(name: str, detail: str, remedy: str) -> Check:
    """A check that found something which makes recording, or reading, fail."""
    return Check("", name, State.PROBLEM, detail, remedy)


def absent(name: str, detail: str, remedy: str) -> Check:
    """A check that missed something optional."""
    return Check("", name, State.ABSENT, detail, remedy)


def worst(checks: Iterable[Check]) -> State:
    """The worst state among the checks; absent counts as ok."""
    states = {check.state for check in checks}
    for state in (State.PROBLEM, State.WARNING):
        if state in states:
            return state
    return State.OK


def count_by_state(checks: Iterable[Check]) -> dict[str, int]:
    """Number of checks for every state."""
    found = Counter(check.state for check in checks)
    return {state.value: found[state] for state in State}
