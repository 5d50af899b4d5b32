"""What tracemalloc recorded of a window: the memory of Python's objects, by step and by place.

The table is written at the end of the window, for people; its numbers are read back from it.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from pathlib import Path

from stepscope.run.files import open_regular

KIND = "python_memory"
"""The kind of the window's file."""

_STEP = re.compile(r"^ +(\d{1,18}) +([\d,]{1,24}) +[\d,]{1,24}(  \(incomplete\))?$")
_PLACE = re.compile(r"^ *[+-][\d,]+ +([+-][\d,]+) +[+-][\d,]+ +[\d,]+  (\S.*)$")
_OTHERS = re.compile(r"^[\d,]+ other locations$")
_MOST_BYTES = 10_000_000
_FEWEST_STEPS = 4
_UNEVEN = 0.5
"""Of the usual growth of a step: below this, a step did not grow."""


@dataclass(frozen=True)
class PythonMemory:
    """The memory of Python's objects over a window.

    Attributes:
        ends: Of each whole step its number, and the bytes that were held at its end.
        places: Bytes per step by which each place grew, and the place ("file:line  code"); the
            most first.
    """

    ends: tuple[tuple[int, int], ...]
    places: tuple[tuple[int, str], ...]

    @property
    def growth_per_step(self) -> int:
        """By how much memory grows from step to step, if it does so in each; else 0.

        The first growth does not count: a window's first step may fill caches.
        """
        if len(self.ends) < _FEWEST_STEPS:
            return 0
        held = [size for _, size in self.ends[1:]]
        growths = [after - before for before, after in itertools.pairwise(held)]
        usual = sorted(growths)[len(growths) // 2]
        return usual if usual > 0 and min(growths) >= _UNEVEN * usual else 0


def read_python_memory(path: Path) -> PythonMemory | None:
    """Reads the table of a window; None if there is none that can be read."""
    try:
        with open_regular(path) as file:
            text = file.read(_MOST_BYTES).decode(errors="replace")
    except OSError:
        return None
    ends, places = [], []
    for line in text.splitlines():
        if step := _STEP.match(line):
            if not step[3]:
                ends.append((int(step[1]), int(step[2].replace(",", ""))))
        elif (place := _PLACE.match(line)) and not _OTHERS.match(place[2]):
            places.append((int(place[1].replace(",", "")), place[2]))
    return PythonMemory(tuple(ends), tuple(sorted(places, reverse=True)))
