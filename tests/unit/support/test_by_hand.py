"""A control fails a test for a wrong answer, and never for a busy machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.by_hand import TRIES, agreed

CALM, BUSY = "", "steps of the same script took 1 s, 9 s"


class Product:
    """Answers in turn, right or wrong, on a machine that is calm or busy after each answer."""

    def __init__(self, answers: str, machine: list[str] | None = None) -> None:
        self.answers: Iterator[str] = iter(answers)
        self.machine = iter(machine or [CALM] * TRIES)

    def check(self) -> str:
        answer = next(self.answers)
        assert answer == "r"
        return answer

    def doubts(self) -> str:
        return next(self.machine)


def test_a_right_answer_needs_no_control() -> None:
    def doubts() -> str:
        raise AssertionError("not asked for")

    assert agreed(Product("r").check, doubts) == "r"


def test_a_wrong_answer_on_a_calm_machine_fails() -> None:
    product = Product("ww")
    with pytest.raises(AssertionError):
        agreed(product.check, product.doubts)


@pytest.mark.parametrize(
    ("answers", "machine"),
    [("wwr", [BUSY, BUSY]), ("wr", [CALM]), ("wwwr", [BUSY, CALM, BUSY])],
)
def test_an_answer_that_becomes_right_counts(answers: str, machine: list[str]) -> None:
    product = Product(answers, machine)
    assert agreed(product.check, product.doubts) == "r"


@pytest.mark.parametrize("machine", [[BUSY] * TRIES, [BUSY, CALM, BUSY, BUSY]])
def test_a_busy_machine_says_nothing(machine: list[str]) -> None:
    product = Product("w" * TRIES, machine)
    with pytest.raises(pytest.skip.Exception, match="too busy"):
        agreed(product.check, product.doubts)


@pytest.mark.parametrize("machine", [[CALM, BUSY, CALM], [BUSY, BUSY, CALM, CALM]])
def test_a_wrong_answer_fails_once_the_machine_is_calm(machine: list[str]) -> None:
    product = Product("w" * TRIES, machine)
    with pytest.raises(AssertionError):
        agreed(product.check, product.doubts)
