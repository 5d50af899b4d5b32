"""Loops over arrays as machine code, for callers that need it only for many rows.

Importing this module does not import llvmlite, which most small traces never need.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@functools.cache
def in_machine_code(
    loop: Callable[..., Any], element: np.dtype[Any] | None = None
) -> Callable[..., Any]:
    """Returns a loop as machine code; see `calling.Translated`.

    Args:
        loop: The function.
        element: What a type variable stands for in its annotations: a type of elements.
    """
    from stepscope.trace.machine.calling import Translated

    return Translated(loop, element)


@dataclass(eq=False)
class WorkSoFar:
    """How much work of one kind this process has done, for which it could load machine code.

    Loading costs the same however little is done then, so it pays from some amount of work on: of
    all calls together. It changes how long an answer takes, never the answer.

    Attributes:
        done: Work so far, in the caller's unit.
    """

    done: int = 0

    def pays_with(self, more: int, pays_from: int) -> bool:
        """Adds work that is to be done now, and says whether it is worth machine code.

        Args:
            more: The work to be done now.
            pays_from: The work from which machine code pays.
        """
        self.done += more
        return self.done >= pays_from
