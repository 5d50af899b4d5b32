"""Programs that keep CPUs busy in bursts, as other work on a machine does."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

PROGRAM = """
import random, time
while True:
    end = time.monotonic() + random.uniform(0.2, 5)
    while time.monotonic() < end:
        pass
    time.sleep(random.uniform(0.2, 5))
"""


@contextlib.contextmanager
def busy_programs(number: int) -> Iterator[None]:
    """Programs that compute and rest in turns while the block runs."""
    programs = [subprocess.Popen([sys.executable, "-IS", "-c", PROGRAM]) for _ in range(number)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()
