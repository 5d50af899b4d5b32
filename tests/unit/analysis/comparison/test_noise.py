"""The noise of medians and means: how often chance alone counts as a change."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl
import pytest
from tests.support.step_records import step_records

from stepscope.analysis.comparison.compare import compare
from stepscope.analysis.comparison.noise import (
    BLOCKS,
    BLOCKS_FROM,
    errors_of_blocks,
    noise_of_medians_ns,
)
from stepscope.analysis.comparison.side import MEASURES, make_side
from stepscope.analysis.record.summary import summarise_steps

Draw = Callable[[np.random.Generator, int], np.ndarray]


def _independent(rng: np.random.Generator, number: int) -> np.ndarray:
    return rng.normal(100, 3, number)


def _with_spikes(rng: np.random.Generator, number: int) -> np.ndarray:
    is_slow = rng.random(number) < 0.05
    return rng.normal(100, 1, number) + is_slow * rng.exponential(200, number)


def _of_two_kinds(rng: np.random.Generator, number: int) -> np.ndarray:
    return np.where(rng.random(number) < 0.45, 150, 100) + rng.normal(0, 0.2, number)


def _in_turn(rng: np.random.Generator, number: int) -> np.ndarray:
    is_long = (np.arange(number) + rng.integers(2)) % 2 == 0
    return np.where(is_long, 120, 100) + rng.normal(0, 0.5, number)


def _like_their_neighbours(rng: np.random.Generator, number: int) -> np.ndarray:
    kept, steps = 0.9, [rng.normal(0, 3)]
    for noise in rng.normal(0, 3 * np.sqrt(1 - kept**2), number - 1):
        steps.append(kept * steps[-1] + noise)
    return 100 + np.array(steps)


def _alarms(draw: Draw, number: int, pairs: int) -> float:
    """Of pairs of runs of the same program, the share whose medians differ beyond the noise."""
    rng = np.random.default_rng(number)
    alarms = 0
    for _ in range(pairs):
        a, b = ((draw(rng, number) * 1e6).astype(np.int64) for _ in range(2))
        alarms += abs(np.median(b) - np.median(a)) > noise_of_medians_ns(a, b)
    return alarms / pairs


@pytest.mark.parametrize("number", [4, 5, 9, 20, 49, 200])
@pytest.mark.parametrize("draw", [_independent, _with_spikes, _of_two_kinds, _in_turn])
def test_chance_alone_is_seldom_a_change(draw: Draw, number: int) -> None:
    assert _alarms(draw, number, 200) <= 0.1


def test_steps_like_their_neighbours_tell_less() -> None:
    # Taken for independent, six of ten pairs would differ.
    assert _alarms(_like_their_neighbours, 200, 200) <= 0.12
    assert _alarms(_like_their_neighbours, 1000, 100) <= 0.1


@pytest.mark.parametrize(("number", "least"), [(5, 0.6), (12, 0.97), (50, 1.0)])
def test_a_change_of_a_tenth_is_found(number: int, least: float) -> None:
    rng = np.random.default_rng(3)
    found = 0
    for _ in range(200):
        a = (_independent(rng, number) * 1e6).astype(np.int64)
        b = (_independent(rng, number) * 1.1e6).astype(np.int64)
        found += np.median(b) - np.median(a) > noise_of_medians_ns(a, b)
    assert found >= 200 * least


def test_noise_does_not_depend_on_which_side_comes_first() -> None:
    rng = np.random.default_rng(5)
    for number in (3, 4, 10, 33):
        a, b = ((_of_two_kinds(rng, number) * 1e6).astype(np.int64) for _ in range(2))
        assert noise_of_medians_ns(a, b) == noise_of_medians_ns(b, a)


@pytest.mark.parametrize("number", [3, 9, 10, 11, 23, 60])
def test_errors_of_blocks_against_brute_force(number: int) -> None:
    rng = np.random.default_rng(number)
    steps = np.sort(rng.choice(1000, number, replace=False))
    rows, expected = [], {}
    for key in ("always", "seldom"):
        values = np.where(
            rng.random(number) < (1.0 if key == "always" else 0.2), rng.integers(1, 999, number), 0
        )
        rows += [(key, key, int(s), 1, int(v)) for s, v in zip(steps, values, strict=True) if v]
        if number >= BLOCKS_FROM:
            means = [block.mean() for block in np.array_split(values.astype(float), BLOCKS)]
            expected[key] = np.var(means, ddof=1) / BLOCKS
    measures = pl.DataFrame(rows, schema=MEASURES, orient="row").sample(fraction=1.0, shuffle=True)
    found = dict(errors_of_blocks(measures, pl.Series(steps)).iter_rows())
    if number < BLOCKS_FROM:
        assert not found
    else:
        seen = set(measures["key"])
        assert found == pytest.approx({key: expected[key] for key in seen})


def test_parts_of_steps_like_their_neighbours_seldom_change_by_chance() -> None:
    rng = np.random.default_rng(11)

    def run() -> object:
        waits = _like_their_neighbours(rng, 150) - 80
        rows = step_records((waits + 60).tolist(), waits_ms=waits.tolist())
        return make_side("run", None, rows, summarise_steps(rows))

    alarms = 0
    for _ in range(60):
        changes = compare(run(), run()).changes
        row = changes.filter(pl.col("table") == "part", pl.col("name") == "input")
        alarms += row["status"][0] != "same"
    assert alarms <= 6  # taken for independent, 33 of the same 60 would be changes
