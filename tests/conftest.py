"""For all tests: none of them judges by the clock, or by how it was started."""

from __future__ import annotations

import os
import signal
import sys

import pytest
from hypothesis import HealthCheck, settings

from stepscope.run.cpus import allowed_cpus

# Examples that take long on a busy machine are no failures, nor is it one to make them slowly; and
# they are the same each time, so that a run judges the code and not its luck (the fuzzers of the
# slow tests look further).
settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.load_profile("untimed")

# Workers and the processes of the tests read each other's compiled modules: without them, each
# worker takes ten seconds to rewrite what it collects. Nothing else of a test depends on it.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Where this is exported, as workers of xdist have it, nothing is as wide as in a pipe.
os.environ.pop("COLUMNS", None)

# A job in a shell's background ignores Ctrl-C, and so would every program that a test starts and
# interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One worker more than there are processors: many tests wait for processes and timers."""
    return allowed_cpus() + 1
