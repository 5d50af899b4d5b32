"""Counts the floating-point operations of one step with torch's own counter.

The counter sees the operators of one step as they are dispatched, forward and backward, and has
formulas for matrix products, convolutions and attention; other operators count as zero. A
multiply-add is two operations. Counting slows the step down, so the step is marked.

Compiled regions run uncompiled in that step, by torch's own switch. Without it, torch.compile would
find the counter, give up on every region that it meets, and not use what it compiled before in the
rest of the training either; a region that must be compiled as a whole would raise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

STEP_KIND = "flop counter"
"""Kind of the step in which operations are counted."""
FLOP_COUNTER_FILE = "flop_counter.txt"
FLOP_COUNTER_KIND = "flop_counter"
_ALL = "Global"
"""The counter's name for the total, next to the names of modules."""


class FlopCount:
    """Counts one step, from start to end, on the training thread.

    Args:
        step: The step.
        write: Called with the text.

    Attributes:
        step_kind: The kind of the step that is counted.
    """

    step_kind = STEP_KIND

    def __init__(self, step: int, write: Callable[[str], object]) -> None:
        self._step = step
        self._write = write
        self._mode: Any = None
        self._stance: AbstractContextManager[Any] | None = None
        self._why_not = ""
        self._counts: dict[str, dict[str, int]] | None = None

    @property
    def missed(self) -> str:
        """Why nothing was counted, once the training is over; empty if something was."""
        if self._counts is not None:
            return ""
        if self._why_not:
            return self._why_not
        return (
            f"the training ended before the end of step {self._step}, whose operations were to be "
            "counted: set flop_counter_step to another step"
        )

    @property
    def is_counting(self) -> bool:
        """Whether operations are being counted."""
        return self._mode is not None

    def step_begins(self, step: int) -> None:
        """Start counting if this is the step to count."""
        if step != self._step or self._mode is not None:
            return
        from torch.utils.flop_counter import FlopCounterMode

        stance = _uncompiled_stance()
        if stance is None and _has_compiled():
            self._why_not = (
                "operations were not counted: torch.compile is in use, and this torch cannot leave"
                " it out for one step (2.6 can)"
            )
            return
        self._stance = stance
        try:
            mode = FlopCounterMode(display=False)
            mode.__enter__()
        except BaseException:
            self.leave()
            raise
        self._mode = mode

    def step_ended(self, step: int) -> bool:
        """Stop counting and write the text; returns whether anything was done."""
        if self._mode is None:
            return False
        if self._counts is None:
            self._counts = _counts_of(self._mode)
        # Modes form a stack. If the training entered one and has not left it, it lies on top of
        # ours, and leaving now would remove theirs. Ours can be left after one of the next steps.
        if not _is_innermost(self._mode):
            return False
        self.leave()
        if step == self._step:
            self._write(table_of(self._counts, step))
        else:
            note = f"The counter could not be removed before the end of step {step}.\n"
            self._write(table_of(self._counts, self._step) + note)
        return True

    def leave(self) -> None:
        """Stop counting."""
        mode, self._mode = self._mode, None
        if mode is not None and _is_innermost(mode):
            mode.__exit__(None, None, None)
        stance, self._stance = self._stance, None
        if stance is not None:
            stance.__exit__(None, None, None)


def _uncompiled_stance() -> AbstractContextManager[Any] | None:
    """Keep torch.compile out until the result is left; None if this torch cannot."""
    from torch import compiler

    set_stance: Callable[[str], AbstractContextManager[Any]] | None
    set_stance = getattr(compiler, "set_stance", None)
    # Calling it is enough to switch; leaving the context switches back.
    return None if set_stance is None else set_stance("force_eager")


def _has_compiled() -> bool:
    """Whether torch.compile has compiled something in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    return bool(utils is not None and getattr(utils, "counters", {}).get("frames"))


def _counts_of(mode: Any) -> dict[str, dict[str, int]]:
    return {
        str(module): {str(operator): int(count) for operator, count in operators.items()}
        for module, operators in mode.get_flop_counts().items()
    }


def _is_innermost(mode: Any) -> bool:
    from torch.utils import _python_dispatch

    current: Callable[[], Any] = _python_dispatch._get_current_dispatch_mode
    # The counter has a separate mode, or is one itself (2.4).
    return current() is getattr(mode, "mode", mode)


def table_of(counts: Mapping[str, Mapping[str, int]], step: int) -> str:
    """The text: the total, operations by operator, and by module including submodules.

    Args:
        counts: Operations by module and operator; "Global" has the total.
        step: The step that was counted.
    """
    everything = counts.get(_ALL, {})
    total = sum(everything.values())
    lines = [
        f"Floating-point operations of step {step}, counted by torch.utils.flop_counter",
        "A multiply-add is two. Matrix products, convolutions and attention are counted, forward",
        "and backward; what the counter has no formula for counts as zero.",
        "",
        f"Total: {total} ({short(total)})",
        "",
        *_rows("Operator", sorted(everything.items(), key=lambda row: -row[1]), total),
    ]
    modules = [
        (_indented(name), sum(counts[name].values()))
        for name in sorted(counts, key=_by_path)
        if name != _ALL
    ]
    if modules:
        lines += ["", *_rows("Module, with its submodules", modules, total)]
    return "\n".join(lines) + "\n"


def short(count: int) -> str:
    """A number of operations in a readable unit."""
    value = float(count)
    for unit in ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP"):
        if value < 1000:
            return f"{value:.4g} {unit}"
        value /= 1000
    return f"{value:.4g} PFLOP"


def _by_path(name: str) -> list[tuple[bool, int, str]]:
    """Sort key: parents before children, and numbered children by number."""
    return [
        (not part.isdecimal(), int(part) if part.isdecimal() else 0, part)
        for part in name.split(".")
    ]


def _indented(name: str) -> str:
    """A module's dotted name, indented by its depth."""
    return "  " * name.count(".") + name


def _rows(heading: str, rows: list[tuple[str, int]], total: int) -> list[str]:
    width = max([len(heading), *(len(name) for name, _ in rows)])
    shares = [f"{count / total:.2%}" if total else "" for _, count in rows]
    return [
        f"{heading:<{width}}  {'FLOP':>20}  {'Share':>8}",
        *(
            f"{name:<{width}}  {count:>20}  {share:>8}"
            for (name, count), share in zip(rows, shares, strict=True)
        ),
    ]
