"""`python -m stepscope.artifacts JOB`: finish one window in a separate process."""

from __future__ import annotations

import sys

from stepscope.artifacts.finish import finish
from stepscope.artifacts.job import FinishJob
from stepscope.run.helper_processes import go_last


def main() -> int:
    """Finish the window described by the only argument."""
    go_last()
    finish(FinishJob.decode(sys.argv[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
