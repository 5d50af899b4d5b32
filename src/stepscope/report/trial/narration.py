"""What `stepscope try` prints while it runs: one line per process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from stepscope.report import units
from stepscope.run.figures import percent

if TYPE_CHECKING:
    from stepscope.advice.diagnosis import Diagnosis
    from stepscope.trial.attempts import Attempt


class Narration:
    """Tells how the trials go.

    Args:
        say: Prints a line.
        first: What the attempt before the rounds is.
    """

    def __init__(self, say: Callable[[str], None], first: str = "diagnosis") -> None:
        self._say = say
        self._first = first

    def ended(self, name: str, number: int, attempt: Attempt) -> None:
        """An attempt has ended; number 0 came before the rounds."""
        if attempt.steps is None:
            what = f"{attempt.problem}: {attempt.reason}"
        else:
            what = f"{units.duration(attempt.steps.mean_ns)} a step"
            if attempt.is_disturbed and attempt.others_share is not None:
                what += f", beside other programs on {percent(attempt.others_share)} of the CPUs"
        where = self._first if not number else f"round {number}"
        took = units.duration(attempt.wall_s * 1e9)
        self._say(f"{where}, {name}: {what} ({took})")

    def diagnosed(self, diagnosis: Diagnosis, names: Sequence[str]) -> None:
        """The script has been diagnosed, and these fixes will be tried."""
        self._say(f"as it is: {diagnosis.verdict}")
        self._say(f"to try: {', '.join(names) or 'nothing'}")
