"""`python -m stepscope.artifacts JOB`: finish one window in a process of its own."""

from __future__ import annotations

import os
import sys

from stepscope.artifacts.finish import finish
from stepscope.artifacts.job import FinishJob

_NICER = 5
"""The training goes first: this process only takes what it leaves."""


def main() -> int:
    """Finish the window that the only argument describes."""
    if hasattr(os, "nice"):
        os.nice(_NICER)
    finish(FinishJob.decode(sys.argv[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
