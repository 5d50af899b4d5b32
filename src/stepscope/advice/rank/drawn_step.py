"""A step as a page draws it: lanes of slices. `window_answers` picks the step and fills them."""

from __future__ import annotations

from dataclasses import dataclass

BUCKETS = 120
"""Equal parts of the step, for what is not drawn slice by slice."""


@dataclass(frozen=True)
class Slice:
    """A slice of a lane.

    Attributes:
        start_ns: From the beginning of the step on; cut to the step.
        what: The word of its colour: a kind of GPU work, a category, or a cause of idle time.
    """

    start_ns: int
    dur_ns: int
    name: str
    what: str


@dataclass(frozen=True)
class StepLane:
    """A lane of the step.

    Attributes:
        slices: The slices that are drawn one by one, in order of time.
        rest: For each of `BUCKETS` equal parts of the step, the share that other slices cover.
        rest_what: The word of the colour of most of these; empty: there are none.
    """

    title: str
    slices: tuple[Slice, ...]
    rest: tuple[float, ...]
    rest_what: str
    others: int


@dataclass(frozen=True)
class TypicalStep:
    """A step.

    Attributes:
        device: The GPU whose step it is; None: the host's.
    """

    step: int
    device: int | None
    dur_ns: int
    lanes: tuple[StepLane, ...]
