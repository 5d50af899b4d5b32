"""A GPU's clock against its host's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.fleet.clocks.device import check_device_clock


def recording(offset_ns: int, seed: int, drift: float = 0.0):  # type: ignore[no-untyped-def]
    """Launches and waits of a sound machine, read on a GPU clock that is off."""
    dice = np.random.default_rng(seed)
    launch = np.sort(dice.integers(0, 10**9, 200))
    start = launch + dice.integers(3_000, 50_000, 200)
    end = start + dice.integers(1_000, 100_000, 200)
    waits = np.sort(dice.choice(200, 20, replace=False))
    returned = end[waits] + dice.integers(2_000, 9_000, 20)

    def read(moments: np.ndarray) -> np.ndarray:
        return moments + offset_ns + (moments * drift).astype(np.int64)

    return launch, read(start), returned, read(end[waits])


@given(st.integers(-(10**8), 10**8), st.integers(0, 1000))
def test_the_planted_offset_is_within_the_bounds(offset_ns: int, seed: int) -> None:
    clock = check_device_clock(*recording(offset_ns, seed))
    assert clock.lower_ns is not None
    assert clock.upper_ns is not None
    assert clock.lower_ns <= offset_ns <= clock.upper_ns
    assert clock.offset_ns is not None
    # Latencies of 3 to 50 µs and returns of 2 to 9 µs leave that much open.
    assert abs(clock.offset_ns - offset_ns) <= 60_000
    assert bool(clock.sentence()) == (not clock.is_sound)


def test_kernels_before_their_launch_are_counted_and_explained() -> None:
    clock = check_device_clock(*recording(-2_000_000, 7))
    assert clock.early_starts == 200
    assert clock.early_returns == 0
    assert clock.offset_ns == pytest.approx(-2_000_000, abs=60_000)
    assert "behind the host's: 200 of 200" in clock.sentence()
    ahead = check_device_clock(*recording(2_000_000, 7))
    assert (ahead.early_starts, ahead.early_returns) == (0, 20)
    assert "ahead of the host's" in ahead.sentence()


def test_a_drifting_clock_has_an_offset_in_each_slice() -> None:
    clock = check_device_clock(*recording(0, 3, drift=-0.00004))
    assert clock.offset_ns is None
    offsets = [offset for _, offset in clock.slices]
    assert len(offsets) == 8
    assert offsets == sorted(offsets, reverse=True)
    assert "drifts" in clock.sentence()


def test_times_that_nothing_explains() -> None:
    launch, start, returned, end = recording(0, 5)
    start = start.copy()
    start[::3] -= 500_000_000
    end = end.copy()
    end[::2] += 500_000_000
    clock = check_device_clock(launch, start, returned, end)
    assert clock.offset_ns is None
    assert "no offset of the clocks explains it" in clock.sentence()


def test_a_rounding_is_forgiven_and_nothing_is_sound() -> None:
    none = np.zeros(0, np.int64)
    assert check_device_clock(none, none, none, none).is_sound
    rounded = check_device_clock(np.array([1_000]), np.array([400]), none, none)
    assert rounded.is_sound
    assert rounded.early_starts == 0
