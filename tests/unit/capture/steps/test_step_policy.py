"""What ends a step, from recorded lists of what a loop did."""

from __future__ import annotations

from typing import Any

import pytest

from stepscope.capture.steps.step_policy import (
    AFTER,
    BY_BATCH,
    BY_FORWARD,
    BY_ITERATION,
    BY_OPTIMIZER,
    REST,
    STEP,
    StepPolicy,
)
from stepscope.run.step_record import CHECKPOINT, END_OF_EPOCH, EVALUATION


class Optimizer:
    pass


MAIN, OTHER = Optimizer(), Optimizer()
TRAIN, HELD_OUT = "training data", "other data"
NOTHING = {"has_called": False, "finds_calls": True, "has_saved": False, "is_long": False}


def ends(step_on: str, *done: Any) -> list[str]:
    """What ended, in order, where a loop fetches (data), learns ("b") and steps (optimizers)."""
    return ends_of(StepPolicy(step_on), *done)


def ends_of(policy: StepPolicy, *done: Any) -> list[str]:
    found = []
    for one in done:
        if one == "b":
            policy.backward_begins()
        elif isinstance(one, Optimizer):
            found.append(policy.optimizer_ended(one))
        elif isinstance(one, tuple):
            found.append(policy.mode_changed(*one))
        elif one == "call":
            found.append(policy.call_ended())
        else:
            found.append(policy.batch_wanted(one))
            policy.batch_came()
    return [one for one in found if one]


def test_the_end_of_an_epoch_is_apart_where_an_evaluation_follows():
    policy, long_ns = StepPolicy(BY_OPTIMIZER), 30_000_000
    epoch, evaluation = (TRAIN, "b", MAIN) * 2, (HELD_OUT, HELD_OUT)
    assert ends_of(policy, *epoch) == [STEP] * 2
    assert policy.epoch_ended(TRAIN, long_ns) == ""  # nobody knows what follows
    assert policy.ending_ns == long_ns  # whoever leaves out the evaluation says so
    assert ends_of(policy, *evaluation, *epoch) == [EVALUATION, STEP, STEP]
    assert policy.ending_ns == 0
    assert policy.epoch_ended(TRAIN, long_ns) == END_OF_EPOCH
    assert policy.ending_ns == 0
    assert ends_of(policy, *evaluation) == []
    assert policy.epoch_ended(HELD_OUT, long_ns) == ""
    assert ends_of(policy, *epoch) == [EVALUATION, STEP, STEP]
    assert policy.epoch_ended(TRAIN, 50_000) == ""  # too short for a line
    assert ends_of(policy, *evaluation, *epoch) == [EVALUATION, STEP, STEP]
    # Without an evaluation it is part of the next step.
    assert policy.epoch_ended(TRAIN, long_ns) == END_OF_EPOCH
    assert ends_of(policy, *epoch) == [STEP] * 2
    assert policy.epoch_ended(TRAIN, long_ns) == ""
    assert ends_of(policy, TRAIN, "b") == []
    assert policy.epoch_ended(TRAIN, long_ns) == ""  # gradients are left for the next step


@pytest.mark.parametrize(
    ("step_on", "done", "found"),
    [
        (BY_OPTIMIZER, (TRAIN, "b", MAIN) * 3, [STEP] * 3),
        (BY_OPTIMIZER, (TRAIN, "b", TRAIN, "b", MAIN) * 3, [STEP] * 3),
        (BY_OPTIMIZER, ("b", OTHER, "b", MAIN) * 3, [STEP] * 3),  # the first one ends the steps
        (BY_ITERATION, (TRAIN, "b", MAIN) * 3, [STEP] * 2),  # the last one has no other end
        (BY_ITERATION, ("b", MAIN) * 3, [STEP] * 3),  # no loader says where one ends
        (BY_BATCH, (TRAIN,) * 3, [STEP] * 2),
        (BY_FORWARD, ("call",) * 3, [STEP] * 3),
        # No backward pass follows batches of an evaluation.
        (BY_OPTIMIZER, (TRAIN, "b", MAIN, HELD_OUT, HELD_OUT, TRAIN, "b", MAIN), None),
        # Nor the mode of evaluation.
        (BY_OPTIMIZER, ("b", MAIN, ("model", False), ("model", True), "b", MAIN), None),
        # What learns while it is set so is trained.
        (BY_OPTIMIZER, (("model", False), "b", ("model", True), MAIN), [STEP]),
    ],
)
def test_what_ends_a_step(step_on: str, done: tuple[Any, ...], found: list[str] | None) -> None:
    assert ends(step_on, *done) == ([STEP, EVALUATION, STEP] if found is None else found)


def test_of_two_optimizers_the_last_before_a_batch_ends_the_steps() -> None:
    found = ends(BY_OPTIMIZER, *(TRAIN, "b", MAIN, "b", OTHER) * 6)
    assert found == [STEP, STEP, REST, STEP, STEP, STEP, STEP]


def test_what_recurs_in_every_step_is_no_evaluation() -> None:
    found = ends(BY_OPTIMIZER, *(HELD_OUT, TRAIN, "b", MAIN) * 6)
    assert found.count(EVALUATION) <= 2
    assert found.count(STEP) == 6


def test_most_steps_say_how_many_batches_one_takes() -> None:
    policy = StepPolicy(BY_OPTIMIZER)
    assert policy.usual_batches() == 0
    ends_of(policy, *(TRAIN, "b", TRAIN, "b", MAIN) * 3, TRAIN, "b", MAIN)
    assert (policy.usual_batches(), policy.steps) == (2, 4)


@pytest.mark.parametrize(
    ("step_on", "done", "known", "rest"),
    [
        (BY_OPTIMIZER, (), {}, ""),
        (BY_OPTIMIZER, (), {"is_long": True}, AFTER),
        (BY_OPTIMIZER, (), {"has_saved": True}, CHECKPOINT),
        (BY_OPTIMIZER, (HELD_OUT,), {}, EVALUATION),
        (BY_OPTIMIZER, (), {"has_called": True}, EVALUATION),
        (BY_OPTIMIZER, (("model", False),), {"finds_calls": False}, EVALUATION),
        (BY_OPTIMIZER, (TRAIN, "b"), {"is_long": True}, ""),
        (BY_BATCH, (TRAIN,), {"is_long": True}, ""),
    ],
)
def test_what_comes_after_the_last_step(
    step_on: str, done: tuple[Any, ...], known: dict[str, bool], rest: str
) -> None:
    policy = StepPolicy(step_on)
    ends_of(policy, TRAIN, "b", MAIN, *done)
    assert policy.rest_kind(**{**NOTHING, **known}) == rest
    assert policy.is_open == (step_on == BY_BATCH)
