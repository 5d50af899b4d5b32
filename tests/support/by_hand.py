"""Tells a wrong answer of `stepscope try` from a machine that is too busy for a right one.

Whatever else runs on a machine changes what a fix brings. So a test whose expectation fails runs a
control: the same scripts without Stepscope, the fix written into them by hand, their steps timed by
themselves. Where the control shows what is planted, the answer was wrong; where it does not, nobody
could have measured it. `agreed` fails only if that happens twice.
"""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from tests.support.guides import environment
from tests.support.warm_python import warm_python

Answer = TypeVar("Answer")

TURNS = 3
"""Processes of each script in a control."""
TRIES = 4
"""How often an expectation is tried before the machine counts as too busy for it."""
_STEPS, _WARM_UP, _STALLS = 30, 6, 3
_TIMER = f"""
import json, sys, time
from torch.optim.optimizer import register_optimizer_step_post_hook

ends = []


def on_step(*of_the_optimizer):
    ends.append(time.perf_counter())
    if len(ends) > {_STEPS}:
        print("ENDS" + json.dumps(ends), flush=True)
        sys.exit(0)


register_optimizer_step_post_hook(on_step)
"""


@dataclass(frozen=True)
class Control:
    """Two scripts, and what a machine must show of them for an answer to be expected.

    Attributes:
        as_it_is: The script.
        fixed: The script with its fix written into it; empty if nothing can help it.
        within: By what share the steps of processes of the same script may differ.
        gain: The least share of the step that the fix saves.
    """

    as_it_is: str
    fixed: str = ""
    within: float = 0.05
    gain: float = 0.1

    def doubts(self, folder: Path, measure: Callable[[str, Path], float] | None = None) -> str:
        """Why no answer can be expected of this machine at this moment; empty if one can.

        The scripts take turns, so that work beside them meets both.

        Args:
            folder: Where to write the scripts.
            measure: The mean step of a script in seconds; by default, that of a process.
        """
        texts = [text for text in (self.as_it_is, self.fixed) if text]
        measure = measure or mean_step_s
        found = [[measure(text, folder) for text in texts] for _ in range(TURNS)]
        sides = [list(side) for side in zip(*found, strict=True)]
        for side in sides:
            if max(side) > (1 + self.within) * min(side):
                return f"steps of the same script took {_listed(side)}"
        if len(sides) == 2 and max(sides[1]) > (1 - self.gain) * min(sides[0]):
            return f"the fix by hand took {_listed(sides[1])} instead of {_listed(sides[0])}"
        return ""


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


def mean_step_s(text: str, folder: Path) -> float:
    """The mean step of a script in a process of its own, warm-up and the longest steps left out."""
    folder.mkdir(exist_ok=True)
    script = folder / "by_hand.py"
    script.write_text(_TIMER + text)
    done = subprocess.run(
        [warm_python(), str(script)],
        cwd=folder,
        env=environment(PYTHONPATH=":".join(path for path in sys.path if path)),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    told = [line for line in done.stdout.splitlines() if line.startswith("ENDS")]
    if not told:
        raise RuntimeError(f"the script by hand took no {_STEPS} steps: {done.stderr[-2000:]}")
    ends = json.loads(told[0].removeprefix("ENDS"))
    steps = [end - start for start, end in itertools.pairwise(ends)][_WARM_UP:]
    return statistics.fmean(sorted(steps)[:-_STALLS])


def _listed(seconds: Sequence[float]) -> str:
    return ", ".join(f"{1000 * one:.1f}" for one in seconds) + " ms"
