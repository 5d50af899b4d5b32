"""Compile the outermost module of the script."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from stepscope.trial.fixes.fix import Facts, Fix, Patches, Plan


def _plan(facts: Facts) -> Plan | str:  # noqa: ARG001 - it applies to every model
    return Plan(
        {},
        "torch.compile of the outermost module",
        ("model.compile()  # or model = torch.compile(model)",),
        promise_basis="no finding says what compiling saves",
    )


def _apply(patches: Patches, options: Any) -> None:
    import torch
    from torch import nn

    is_inside = False

    def wrap(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def called(module: Any, *arguments: Any, **keywords: Any) -> Any:
            nonlocal is_inside
            is_main = threading.current_thread() is threading.main_thread()
            if is_inside or not is_main or not torch.is_grad_enabled():
                return call(module, *arguments, **keywords)
            has_own = next(module.parameters(), None) is not None
            if has_own and not isinstance(module, nn.modules.loss._Loss):
                # What is compiled must not find this wrapper.
                nn.Module.__call__ = call  # type: ignore[method-assign]
                module.compile(**options)
                patches.did(f"{patches.place()}: {type(module).__name__}")
                return call(module, *arguments, **keywords)
            is_inside = True
            try:
                return call(module, *arguments, **keywords)
            finally:
                is_inside = False

        return called

    patches.replace(nn.Module, "__call__", wrap)


FIX = Fix(
    name="compile",
    title="compile the outermost module",
    answers=(
        "launch-bound",
        "fusible-pattern",
        "unfused-elementwise",
        "many-small-kernels",
        "cpu-bound-python",
    ),
    applies_to="models that torch.compile can trace",
    risks="a slow start, and again with new shapes; rounds differently; needs a C++ compiler",
    plan=_plan,
    apply=_apply,
    only_if_asked=True,
    start_up_s=300.0,
)
