"""Which functions of ours a call enters: each further one costs every step of a training."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import stepscope

_ROOT = str(Path(stepscope.__file__).parent)


def fewest_entered(call: Callable[[], object]) -> list[str]:
    """The names of those that the shortest of 20 calls enters, sorted; 50 come before."""
    entered: list[list[str]] = []

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(_ROOT):
            entered[-1].append(frame.f_code.co_name)

    for _ in range(50):
        call()
    for _ in range(20):
        entered.append([])
        sys.setprofile(note)
        call()
        sys.setprofile(None)
    return sorted(min(entered, key=len))
