"""What tracemalloc recorded of a window: the memory of Python's objects, by step and by place.

The table is written at the end of the window, for people; its numbers are read back from it.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from pathlib import Path

from stepscope.run.files import open_regular

KIND = "python_memory"
"""The kind of the window's file."""

_STEP = re.compile(r"^ +(\d{1,18}) +([\d,]{1,24}) +[\d,]{1,24}(  \(incomplete\))?$")
_SITE = re.compile(r"^ *[+-][\d,]+ +([+-][\d,]+) +[+-][\d,]+ +[\d,]+  (\S.*)$")
_OTHERS = re.compile(r"^[\d,]+ other locations$")
_CALLER = re.compile(r"^ +called from (\S.*)$")
INSTALLED = r"^.*/(?:site-packages|dist-packages|lib/python3\.\d+)/"
"""Where packages lie on one machine, which is of no interest in a table."""
_MOST_BYTES = 10_000_000
_FEWEST_STEPS = 4
_UNEVEN = 0.5
"""Of the usual growth of a step: below this, a step did not grow."""


@dataclass(frozen=True, order=True)
class AllocationSite:
    """A line that allocates, and by how much that grew.

    Attributes:
        bytes_per_step: Growth per step.
        text: "file:line  code". A library's file is named without the folder of all libraries.
        caller: The line outside libraries that called it; empty if it is none itself, or unknown.
        is_library: Whether the line is a library's.
    """

    bytes_per_step: int
    text: str
    caller: str = ""
    is_library: bool = False

    @property
    def name(self) -> str:
        """The line to look at: the training's own, if it is known."""
        return f"{self.caller}, in {self.text}" if self.caller else self.text


@dataclass(frozen=True)
class PythonMemory:
    """The memory of Python's objects over a window.

    Attributes:
        ends: Of each whole step its number, and the bytes that were held at its end.
        places: The places that grew; the most first.
    """

    ends: tuple[tuple[int, int], ...]
    places: tuple[AllocationSite, ...]

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
    ends: list[tuple[int, int]] = []
    places: list[AllocationSite] = []
    for line in text.splitlines():
        if step := _STEP.match(line):
            if not step[3]:
                ends.append((int(step[1]), int(step[2].replace(",", ""))))
        elif (place := _SITE.match(line)) and not _OTHERS.match(place[2]):
            named, is_library = _named(place[2])
            places.append(
                AllocationSite(int(place[1].replace(",", "")), named, is_library=is_library)
            )
        elif places and (caller := _CALLER.match(line)):
            last = places[-1]
            if last.is_library and not last.caller and not _named(caller[1])[1]:
                places[-1] = replace(last, caller=caller[1])
    return PythonMemory(tuple(ends), tuple(sorted(places, reverse=True)))


def _named(place: str) -> tuple[str, bool]:
    """A place without the folder of all libraries, and whether it is in one."""
    file, gap, code = place.partition("  ")
    named = re.sub(INSTALLED, "", file)
    return named + gap + code, named != file or file.startswith("<frozen ")
