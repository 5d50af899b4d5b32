"""The hardest trainings, chosen by what they contain and never by what the product says of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice

from tests.support.simulator.program import Program
from tests.support.simulator.random_programs import random_program

FIRST_SEED = 1000
"""Smaller seeds are those of `test_truth`, with which the replay was made."""
_LEAST = 3


def difficulties(program: Program) -> tuple[str, ...]:
    """What makes a training hard to judge."""
    causes, recording = program.causes, program.recording
    known = {
        "two causes": len(causes) == 2,
        "several ranks": program.world_size > 1,
        "a late rank": program.late is not None,
        "a full launch queue": "full-queue" in causes,
        "one-off costs": "once" in causes,
        "short epochs": "epochs" in causes,
        "work before the window that is not in the file": recording.start == "unseen",
        "recording slows the host": recording.has_record and recording.host_factor > 1,
        "no annotated steps": not recording.has_steps,
    }
    return tuple(name for name, is_there in known.items() if is_there)


def hardest_seeds(number: int) -> tuple[int, ...]:
    """The first seeds of trainings with three or more difficulties."""
    return tuple(islice(_hard_seeds(), number))


def _hard_seeds() -> Iterator[int]:
    return (seed for seed in count(FIRST_SEED) if len(difficulties(random_program(seed))) >= _LEAST)
