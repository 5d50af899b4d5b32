"""Which optimizer ends the steps when a training has several."""

from __future__ import annotations

import gc

from stepscope.capture.steps.step_policy import MainOptimizer


class Optimizer:
    """Stands for one; only its identity matters."""


def test_the_first_one_ends_the_steps():
    first, second = Optimizer(), Optimizer()
    main = MainOptimizer()
    assert [main.ends_steps(one) for one in (first, second, second, first)] == [
        True,
        False,
        False,
        True,
    ]


def test_another_takes_the_place_of_one_that_goes_unused():
    first, second = Optimizer(), Optimizer()
    main = MainOptimizer()
    assert main.ends_steps(first)
    assert [main.ends_steps(second) for _ in range(52)] == [False] * 50 + [True] * 2
    assert not main.ends_steps(first)


def test_the_last_before_a_batch_takes_over_once_it_is_sure():
    first, second = Optimizer(), Optimizer()
    main = MainOptimizer()
    assert not main.batch_is_wanted()
    changed = []
    for _ in range(4):
        main.ends_steps(first)
        main.ends_steps(second)
        changed.append(main.batch_is_wanted())
        assert not main.batch_is_wanted()  # nothing stepped since then
    assert changed == [False, True, False, False]
    assert main.ends_steps(second)
    assert not main.ends_steps(first)


def test_it_takes_longer_to_change_again():
    first, second = Optimizer(), Optimizer()
    main = MainOptimizer()
    changes = []
    for number in range(40):
        main.ends_steps(first)
        main.ends_steps(second)
        if number % 10 > 4:  # for a while, the first is the last
            main.ends_steps(first)
        changes.append(main.batch_is_wanted())
    assert [place for place, is_one in enumerate(changes) if is_one] == [1, 8]


def test_one_that_is_gone_is_replaced_at_once_even_by_one_at_the_same_address():
    main = MainOptimizer()
    for _ in range(5):
        only = Optimizer()
        assert main.ends_steps(only)
        del only
        gc.collect()
