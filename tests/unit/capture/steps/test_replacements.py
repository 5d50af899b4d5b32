"""Methods that are replaced and restored in any order, and hooks that torch.compile must skip."""

from __future__ import annotations

import itertools

import pytest
import torch

from stepscope.capture.steps.replacements import (
    Replacements,
    compiler_at_work,
    kept_from_dynamo,
)


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


@pytest.mark.parametrize("lacks", ["", "_disable_dynamo", "get_eval_frame_callback"])
def test_a_hook_runs_once_in_every_version_of_torch(monkeypatch, lacks):
    """It asks whether something is compiled, and takes the other way then, which leads back."""
    if lacks == "_disable_dynamo":
        monkeypatch.delattr(torch, lacks)
    elif lacks:
        monkeypatch.delattr(torch._C._dynamo.eval_frame, lacks)
    compiles, calls = compiler_at_work(), []

    def hook(given):
        if compiles() is not None:
            return kept.aside(given)
        calls.append(given)
        return given + 1

    kept = kept_from_dynamo(hook)
    assert kept.installed(1) == 2
    compiled = torch.compile(lambda values: values + kept.installed(2), backend="eager")
    try:
        assert compiled(torch.ones(1)).tolist() == [4.0]
    finally:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()  # others ask whether this process has compiled
    assert calls == [1, 2]
