"""Plain functions that worker processes run: found by name, as an engine requires."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from stepscope.advice.rank.opened_traces import OpenedTraces
from stepscope.errors import UnreadableInputError
from stepscope.opening.reader import RankRun


def text_of(item: int) -> str:
    """What an item becomes."""
    return f"<{item}>"


def refuses_sevens(item: int) -> str:
    if item % 10 == 7:
        raise UnreadableInputError(f"item {item} is no trace")
    return text_of(item)


def fails_twice(item: tuple[str, int]) -> str:
    """Fails the first two times that it is called for an item; the folder keeps count."""
    folder, number = item
    tries = len(list(Path(folder).glob(f"{number}-*")))
    (Path(folder) / f"{number}-{tries}").touch()
    if number % 3 == 0 and tries < 2:
        raise OSError(f"item {number} is not there yet")
    return text_of(number)


def dies_once(item: tuple[str, int]) -> str:
    """Kills its own process the first time that it is called for item 5."""
    folder, number = item
    mark = Path(folder) / "died"
    if number == 5 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.01)
    return text_of(number)


def always_dies(item: int) -> str:
    if item == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return text_of(item)


def prints(item: int) -> str:
    print("noise on standard output", item)
    return text_of(item)


def process_of(item: int) -> int:
    time.sleep(0.05)
    return os.getpid()


def slow(item: int) -> str:
    time.sleep(0.2)
    return text_of(item)


def always_broken(item: int) -> str:
    raise RuntimeError(f"no {item}")


def environment(name: str) -> str:
    return os.environ[name]


@dataclass(frozen=True)
class TracesKept:
    """Asks how many traces are kept where a rank is read."""

    rank: RankRun

    def known(self) -> None:
        return None

    def read(self, opened: OpenedTraces) -> int:
        return len(opened._kept)
