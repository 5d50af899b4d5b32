"""What torch.compile must not compile, and what functions do while it compiles them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FunctionType
from typing import Any, TypeVar, cast

_Result = TypeVar("_Result")


def is_compiling() -> bool:
    """Whether torch.compile or torch.export traces the caller, who must not break the graph."""
    import torch

    return torch.compiler.is_compiling()


def compiled_phase(name: str) -> AbstractContextManager[None]:
    """A phase inside a function that is being compiled: what the compiler makes of a range."""
    import torch

    return torch.profiler.record_function(name)


def disable_dynamo(hook: Callable[..., _Result]) -> Callable[..., _Result]:
    """A hook that torch.compile calls and does not try to compile, where it compiles an optimizer.

    It would fail at the first call into the operating system, and warn of it. The hook must be a
    function, no method: torch keeps what it makes of it there.
    """
    import torch

    # As torch.compiler.disable, which loads the compiler; optimizers load it anyway.
    disable = getattr(torch, "_disable_dynamo", None)
    return hook if disable is None else disable(hook)


def skipped_by_dynamo(call: Callable[..., _Result]) -> Callable[..., _Result]:
    """A function that torch.compile calls and does not try to compile.

    Unlike `disable_dynamo`, it does not load the compiler into a training that does without.
    """
    import torch

    disabled = disable_dynamo(call)

    @functools.wraps(call)
    def called(*given: Any, **named: Any) -> _Result:
        if "torch._dynamo" in sys.modules:
            return disabled(*given, **named)
        return call(*given, **named)

    frames = getattr(torch._C, "_dynamo", None)
    skip = getattr(getattr(frames, "eval_frame", None), "skip_code", None)
    if skip is not None:
        skip(cast("FunctionType", called).__code__)
    return called
