"""Methods that are replaced, by one or by several, and restored in any order."""

from __future__ import annotations

import itertools

import pytest

from stepscope.capture.steps.replacements import Replacements


class Base:
    def call(self) -> str:
        return "base"


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("has_own", [True, False])
def test_what_a_class_inherits_is_no_attribute_of_its_own_afterwards(order, has_own):
    one = type("One", (Base,), {"call": lambda self: "one"} if has_own else {})
    before = dict(vars(one))
    each = [Replacements() for _ in range(3)]
    for replacements in each:
        replacements.replace(one, "call", lambda call: lambda self: call(self) + "!")
    assert one().call().endswith("!!!")
    for place in order:
        each[place].restore()
    assert dict(vars(one)) == before
    assert one().call() == ("one" if has_own else "base")
