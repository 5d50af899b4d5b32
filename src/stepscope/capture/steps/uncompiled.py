"""Functions that torch.compile calls, and does not try to compile."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar, cast

_Result = TypeVar("_Result")


def uncompiled(hook: Callable[..., _Result]) -> Callable[..., _Result]:
    """A hook that torch.compile calls and does not try to compile, where it compiles an optimizer.

    It would fail at the first call into the operating system, and warn of it.
    """
    import torch

    def call(*given: Any, **named: Any) -> _Result:
        return hook(*given, **named)

    # As torch.compiler.disable, which loads the compiler; optimizers load it anyway.
    leave_alone = getattr(torch, "_disable_dynamo", None)
    return call if leave_alone is None else leave_alone(call)


def out_of_compiler(call: Callable[..., _Result]) -> Callable[..., _Result]:
    """A function that torch.compile calls and does not try to compile.

    Unlike `uncompiled`, it does not load the compiler into a training that does without.
    """
    import torch

    alone = uncompiled(call)

    @functools.wraps(call)
    def called(*given: Any, **named: Any) -> _Result:
        may_compile = "torch._dynamo" in sys.modules
        return alone(*given, **named) if may_compile else call(*given, **named)

    frames = getattr(torch._C, "_dynamo", None)
    leave_alone = getattr(getattr(frames, "eval_frame", None), "skip_code", None)
    if leave_alone is not None:
        leave_alone(cast("FunctionType", called).__code__)
    return called
