"""`python -m stepscope`: the same as the command `stepscope`."""

from __future__ import annotations

import sys

from stepscope.commands.entry import run

sys.exit(run())
