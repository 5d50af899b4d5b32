"""For all tests: none of them judges by the clock, or by how it was started."""

from __future__ import annotations

import signal

from hypothesis import settings

# Examples that take long on a busy machine are no failures.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# A job in a shell's background ignores Ctrl-C, and so would every program that a test starts and
# interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
