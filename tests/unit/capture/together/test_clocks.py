"""Comparing clocks over a store: right within its bound, again and again, and nothing left."""

from __future__ import annotations

import threading
import time

import pytest

from stepscope.capture import clock_sync as module
from stepscope.capture.clock_sync import ClockRounds
from stepscope.capture.ranks import RankIdentity
from stepscope.run.manifest import ClockSample
from stepscope.skew.rank_skew import RankSteps


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A round ends when the test says so."""
    monkeypatch.setattr(module, "_COME_S", 120.0)


class WaitingStore:
    """A store for several threads, in which one can wait for a key."""

    def __init__(self):
        self.values = {}
        self.news = threading.Condition()
        self.is_over = False

    def set(self, key, value):
        with self.news:
            self.values[key] = value
            self.news.notify_all()

    def get(self, key):
        return self.values[key]

    def check(self, keys):
        return all(key in self.values for key in keys)

    def add(self, key, amount):
        with self.news:
            self.values[key] = self.values.get(key, 0) + amount
            return self.values[key]

    def wait_for(self, key):
        with self.news:
            assert self.news.wait_for(lambda: key in self.values, 120)

    def delete_key(self, key):
        return self.values.pop(key, None) is not None


def clock(offset_ns):
    return lambda: time.perf_counter_ns() + offset_ns


def rounds_of(offsets_ns, found, locals_=None):
    count = len(offsets_ns)
    return [
        ClockRounds(
            RankIdentity(rank, (locals_ or range(count))[rank], count),
            clock(offset),
            found[rank].append,
        )
        for rank, offset in enumerate(offsets_ns)
    ]


def hold(store, rounds):
    """One look of every rank, rank 0's in a thread of its own since it waits for the others."""
    store.is_over = False
    teller = threading.Thread(target=rounds[0].look, args=(store, "p/", lambda: store.is_over))
    teller.start()
    store.wait_for("p/clock/round")
    for asker in rounds[1:]:
        asker.look(store, "p/")
    store.is_over = True
    teller.join()


def test_offsets_are_right_within_their_bounds():
    store, found = WaitingStore(), [[], [], []]
    offsets_ns = (0, 5_000_000_000, -3_000_000)
    hold(store, rounds_of(offsets_ns, found))
    assert found[0] == []
    for rank in (1, 2):
        (offset,) = found[rank]
        assert abs(offset.offset_ns + offsets_ns[rank]) <= offset.error_ns
        assert abs(offset.time_ns - clock(offsets_ns[rank])()) < 60_000_000_000


def test_clocks_are_compared_again_by_one_rank_of_each_machine(monkeypatch):
    monkeypatch.setattr(module, "_EVERY_S", 0.0)
    store, found = WaitingStore(), [[], [], []]
    rounds = rounds_of((0, 10, 20), found, [0, 1, 0])
    sizes = []
    for _ in range(3):
        store.values.pop("p/clock/round", None)
        hold(store, rounds)
        sizes.append(len(store.values))
    assert [len(offsets) for offsets in found] == [0, 1, 3]
    assert sizes[-1] == sizes[0], "the store must not grow with the run"


def test_a_rank_that_is_late_gets_a_round_of_its_own(monkeypatch):
    monkeypatch.setattr(module, "_SOON_S", 0.0)
    store, found = WaitingStore(), [[], []]
    rounds = rounds_of((0, 10), found)
    rounds[0].look(store, "p/", lambda: True)
    store.values.pop("p/clock/round")
    hold(store, rounds)
    assert len(found[1]) == 1


def test_a_round_that_is_over_is_not_joined():
    store, found = WaitingStore(), [[], []]
    rounds = rounds_of((0, 10), found)
    rounds[0].look(store, "p/", lambda: True)
    rounds[1].look(store, "p/")
    assert found[1] == []
    assert "p/clock/1/come" not in store.values


def test_the_clock_is_not_waited_for_where_nobody_tells_it(monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE_S", 0.01)
    store, found = WaitingStore(), [[], []]
    store.set("p/clock/round", b"1")
    rounds_of((0, 10), found)[1].look(store, "p/")
    assert found[1] == []
    assert store.get("p/clock/1/come") == 1


def test_a_store_that_dies_within_a_round_costs_that_round():
    class DyingStore(WaitingStore):
        def check(self, keys):
            if keys != ["p/clock/round"]:
                raise RuntimeError("Connection reset by peer")
            return super().check(keys)

    store, found = DyingStore(), [[], [], []]
    store.set("p/clock/round", b"1")
    for one in reversed(rounds_of((0, 10, 20), found)):
        one.look(store, "p/")
    assert found == [[], [], []]
    assert store.get("p/clock/round") == b"0"


@pytest.mark.parametrize(
    ("time_ns", "expected"), [(0, 100), (1000, 100), (1500, 150), (2500, 250), (9000, 300)]
)
def test_between_two_samples_an_offset_lies_on_their_line(time_ns, expected):
    samples = [ClockSample(n * 1000, n * 100, 1) for n in (1, 2, 3)]
    assert RankSteps(1, [], 300, clock_samples=samples).offset_at(time_ns) == expected


def test_without_samples_an_offset_is_the_same_at_all_times():
    assert RankSteps(1, [], 300).offset_at(5) == 300
