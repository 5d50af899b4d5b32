"""Random damage to traces: no crash, no hang, no unbounded memory, and both readers agree.

`STEPSCOPE_FUZZ_SECONDS` says for how long (600), `STEPSCOPE_FUZZ_SEED` repeats a run.
"""

from __future__ import annotations

import os
import random
import resource
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.chrome_traces import (
    FRAMES,
    LAYOUTS,
    assert_same_tables,
    kernel,
    operator,
    read_compiled,
    read_tolerantly,
    write,
)
from tests.support.damage import damaged
from tests.support.excerpts import excerpts
from tests.support.recorder_mistakes import with_mistakes

from stepscope.errors import UnreadableInputError
from stepscope.trace.formats.chrome.scanner import repaired
from stepscope.trace.tables import Tables

SECONDS = float(os.environ.get("STEPSCOPE_FUZZ_SECONDS", "600"))


def outcome(read: Callable[[bytes, int], Tables], data: bytes, block: int) -> Tables | str:
    """The tables, or what the error says."""
    try:
        return read(data, block)
    except UnreadableInputError as error:
        return str(error)


def events_to_damage() -> list[dict[str, Any]]:
    """Events of several kinds."""
    events = [
        make(args={"correlation": number, "text": "},{" * 3, "list": [[1, 2], []]})
        for number in range(6)
        for make in (operator, kernel)
    ]
    events.append({"ph": "B", "name": "b", "ts": 1, "pid": 1, "tid": 1})
    events.append({"ph": "E", "ts": 5, "pid": 1, "tid": 1})
    events.append({"ph": "s", "id": 3, "name": "f", "cat": "ac2g", "ts": 5, "pid": 1, "tid": 1})
    return events


def assert_readers_agree(
    originals: list[bytes],
    damage: Callable[[bytes, random.Random], bytes],
    reads: tuple[Callable[[bytes, int], Tables], ...],
) -> None:
    """Damages traces for as long as is asked for, and compares what the readers make of them.

    Args:
        originals: Sound traces.
        damage: Damages one.
        reads: The readers that are compared with the tolerant one.
    """
    seed = int(os.environ.get("STEPSCOPE_FUZZ_SEED", time.time_ns() % 2**32))
    chance = random.Random(seed)
    read_compiled(originals[0])
    memory_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    end = time.monotonic() + SECONDS
    cases = 0
    while time.monotonic() < end:
        state = chance.getrandbits(32)
        case = random.Random(state)
        data = damage(case.choice(originals), case)
        # Each block of a long event is looked at with all before it: not too many of them.
        block = max(case.choice((1, 13, 100, 1000, 1 << 22)), len(data) // 2000)
        label = f"seed {seed}, case {cases}, state {state}, block {block}"
        began = time.process_time()
        expected = outcome(read_tolerantly, data, 1 << 22)
        for read in reads:
            found = outcome(read, data, block)
            if isinstance(expected, str) or isinstance(found, str):
                assert expected == found, label
            else:
                try:
                    assert_same_tables(expected, found)
                except AssertionError as error:
                    raise AssertionError(f"{label}: {error}") from error
        assert time.process_time() - began < 30, label
        cases += 1
    print(f"{cases} cases, seed {seed}")
    memory_after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert memory_after - memory_before < 1_000_000, "more than 1 GB for files of 200 kB"
    assert cases > 0


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 300)
def test_random_damage() -> None:
    events = events_to_damage()
    originals = [write(events, layout, frame) for layout in LAYOUTS for frame in FRAMES]
    assert_readers_agree(originals + excerpts(), damaged, (read_compiled,))


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 300)
def test_mistakes_of_recorders(monkeypatch: pytest.MonkeyPatch) -> None:
    events = events_to_damage() * 4
    originals = [write(events, layout, frame) for layout in LAYOUTS for frame in FRAMES]

    def mistaken(data: bytes, chance: random.Random) -> bytes:
        for name, sizes in (
            ("_LEAST_AT_ONCE", (1, 300, 1 << 15)),
            ("_COPY_UNIT", (1 << 10, 1 << 17)),
        ):
            monkeypatch.setattr(repaired, name, chance.choice(sizes))
        return with_mistakes(data, chance)[:200_000]

    reads = (read_compiled,)
    assert_readers_agree(originals + excerpts(), mistaken, reads)
