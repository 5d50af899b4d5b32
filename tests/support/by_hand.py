"""Tells a wrong answer from a machine that is too busy for a right one.

Whatever else runs on a machine changes what is measured there. So a test whose expectation fails
runs a control, which measures the same without Stepscope. Where the control shows what is planted,
the answer was wrong; where it does not, nobody could have measured it. `agreed` fails only if that
happens twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

Answer = TypeVar("Answer")

TRIES = 4
"""How often an expectation is tried before the machine counts as too busy for it."""


def agreed(check: Callable[[], Answer], doubts: Callable[[], str]) -> Answer:
    """What `check` returns; fails if it is wrong twice while the machine can be relied on.

    Args:
        check: Asks the product, and asserts what it shall answer.
        doubts: Why no right answer can be expected of the machine; empty if one can.
    """
    reasons, wrong = [], 0
    for _ in range(TRIES):
        try:
            return check()
        except AssertionError:
            why = doubts()
            if not why:
                wrong += 1
                if wrong == 2:
                    raise
            reasons.append(why or "nothing")
    pytest.skip(f"this machine is too busy; what spoke against it: {'; '.join(reasons)}")
