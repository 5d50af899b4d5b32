"""`python -m stepscope`: the same as the command `stepscope`."""

from __future__ import annotations

import sys

from stepscope.commands.main import main

sys.exit(main())
