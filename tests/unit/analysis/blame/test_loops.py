"""Loops over many ranks give the same as machine code and as Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.fleet_jobs import PROBLEMS, Grid, Problem, simulate

from stepscope.analysis.blame import delays, matched, replay
from stepscope.analysis.blame.usual import find_usual

MODULES = (matched, delays, replay)


def as_python(loop: Any) -> Any:
    """Stands in for `jit`."""
    return loop


def both(answer: Any) -> tuple[list[Any], list[Any]]:
    """What a function returns with loops as machine code, and with loops as Python."""
    by_machine = answer()
    with pytest.MonkeyPatch.context() as patch:
        for module in MODULES:
            patch.setattr(module, "jit", as_python)
        by_python = answer()
    return tuple([np.asarray(part).tolist() for part in found] for found in (by_machine, by_python))


@settings(max_examples=15, deadline=None)
@given(
    shape=st.sampled_from([(1, 4, 1, 1, 1), (2, 2, 1, 1, 2), (3, 1, 1, 2, 2), (1, 2, 2, 1, 1)]),
    seed=st.integers(0, 1000),
    kind=st.sampled_from(PROBLEMS),
)
def test_what_delays_caused(shape: tuple[int, ...], seed: int, kind: str) -> None:
    job = simulate(Grid(*shape, steps=3), seed, Problem(kind, 0, 0.3))

    def answer() -> list[Any]:
        found = matched.match(job.arrivals, job.groups)
        usual = find_usual(found)
        caused = delays.pass_back(found, usual)
        replayed = replay.Replay(found)
        return [
            found.previous, found.collective, caused.work_ns, caused.transfer_ns,
            caused.unexplained_ns,
            replayed.duration_ns(), replayed.duration_ns(replay.Less(usual.excess_ns.sum(axis=1))),
            replayed.duration_ns(replay.Less(transfer_ns=usual.transfer_excess_ns)),
        ]  # fmt: skip

    by_machine, by_python = both(answer)
    assert by_machine == by_python
    assert sum(map(sum, by_machine[2])) > 0


def test_chains_longer_than_their_room_end_there(monkeypatch: pytest.MonkeyPatch) -> None:
    job = simulate(Grid(2, 2, 1, 1, 2, steps=3), 4, Problem(PROBLEMS[0], 0, 0.3))
    found = matched.match(job.arrivals, job.groups)
    usual = find_usual(found)
    monkeypatch.setattr(delays, "_LONGEST_CHAIN", 2)

    def answer() -> list[Any]:
        caused = delays.pass_back(found, usual)
        return [caused.work_ns, caused.transfer_ns, caused.unexplained_ns]

    by_machine, by_python = both(answer)
    assert by_machine == by_python
