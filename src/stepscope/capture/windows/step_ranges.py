"""The ranges that mark a window's steps in the trace."""

from __future__ import annotations

from typing import Any


class StepRanges:
    """Marks steps in the trace, and tracks which ranges turned out not to be steps.

    A range is opened before it is known whether a step will follow: the loop may end first. Torch
    cannot rename a range afterwards, so a range that is opened again gets another name, and the
    right names are filled in when the trace is written.
    """

    def __init__(self) -> None:
        self._range: Any = None
        self._name = ""
        self._step = 0
        self._opened: dict[int, int] = {}
        self._whole: dict[int, str] = {}
        self._void: list[tuple[int, str]] = []

    @property
    def whole_steps(self) -> tuple[int, ...]:
        """The steps that were recorded from start to end."""
        return tuple(self._whole)

    def open(self, step: int) -> None:
        """Begin the range of a step."""
        import torch

        times = self._opened[step] = self._opened.get(step, 0) + 1
        self._step = step
        self._name = f"ProfilerStep#{step}" if times == 1 else f"ProfilerStep#{step}/{times}"
        self._range = torch.profiler.record_function(self._name)
        self._range.__enter__()

    def close(self, *, is_whole: bool) -> None:
        """End the open range, if any; `is_whole` says whether it was a complete step."""
        if self._range is None:
            return
        step_range, self._range = self._range, None
        if is_whole:
            self._whole[self._step] = self._name
        else:
            self._void.append((self._step, self._name))
        step_range.__exit__(None, None, None)

    def renames(self) -> dict[str, str]:
        """Names of ranges to replace in the finished trace."""
        result = {name: f"ProfilerStep#{step}" for step, name in self._whole.items() if "/" in name}
        for step, name in self._void:
            # A trace without a complete step keeps its partial one: there is nothing else to see.
            is_all = not self._whole and (step, name) == self._void[-1]
            wanted = f"ProfilerStep#{step}" if is_all else f"stepscope.no_step#{step}"
            if wanted != name:
                result[name] = wanted
        return result
