"""A control fails a test for a wrong answer, and never for a busy machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.by_hand import TRIES, Control, agreed, mean_step_s
from tests.support.planted_scripts import FRAMEWORKS, HEAD, PLANTED, SLOW_DATA_SET

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


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([10, 6, 10.2, 6.1, 9.9, 6], ""),
        ([10, 6, 12, 6, 10, 6], "same script took 10000.0, 12000.0, 10000.0 ms"),
        ([10, 6, 10, 6, 10, 7], "same script took 6000.0"),
        ([10, 9.5, 10, 9.5, 10, 9.5], "the fix by hand took"),
    ],
)
def test_the_machine_is_asked_in_turns(tmp_path, steps: list[float], said: str) -> None:
    given = iter(steps)
    asked = []

    def measure(text: str, folder: object) -> float:
        asked.append(text)
        return next(given)

    doubts = Control("slow", "fast").doubts(tmp_path, measure)
    assert said in doubts if said else not doubts
    assert asked == ["slow", "fast"] * 3


def test_nothing_to_fix_needs_only_steady_steps(tmp_path) -> None:
    for steps, is_calm in (([10, 10.1, 10], True), ([10, 11, 10], False)):
        given = iter(steps)
        doubts = Control("slow").doubts(tmp_path, lambda text, folder, g=given: next(g))
        assert (not doubts) == is_calm


def test_scripts_time_their_own_steps(tmp_path) -> None:
    text = HEAD + SLOW_DATA_SET.replace("0.02", "0.0002").replace("0.15", "0.002")
    assert 8 * 0.0002 + 0.002 < mean_step_s(text, tmp_path) < 60


@pytest.mark.parametrize("name", PLANTED)
def test_fixes_by_hand_change_the_script(name: str) -> None:
    planted = PLANTED[name]
    assert bool(planted.wins) == bool(planted.fixed)
    assert planted.fixed != planted.text
    if planted.fixed:
        compile(planted.fixed, name, "exec")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_workers_by_hand_change_the_script(framework: str) -> None:
    text, with_workers = FRAMEWORKS[framework]
    assert text != with_workers
    compile(with_workers, framework, "exec")
