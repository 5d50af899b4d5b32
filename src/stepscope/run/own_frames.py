"""What Stepscope's own frames look like in a recording of Python's calls.

An answer about a training has none of them: not those of the threads that Stepscope starts, and not
those of what it does on the training's thread. What a frame of ours calls is ours as well, as long
as it is built in or of the standard library; where we call something of the training for it (the
next batch, a backward pass), that is the training's.
"""

from __future__ import annotations

import re
import sys

OWN_FILE = (
    r"(^|/)stepscope/((adapters|artifacts|capture|commands|monitor|run|trial)/[\w/]+|system)\.py"
    r"(\(\d+\))?: "
)
"""Regular expression of the names of our frames, as `file.py(line): function`."""
_STANDARD = "|".join(map(re.escape, sorted(sys.stdlib_module_names)))
CALLED = (
    rf"^(<built-in |(?:\S*/lib/python3\.\d+/)?(?:{_STANDARD})"
    r"(?:/[\w/]+)?\.py(?:\(\d+\))?: |torch/autograd/profiler\.py\(\d+\): __(?:init|enter|exit)__$)"
)
"""Of what is ours where a frame of ours calls it."""
PASSED_ON = r"^<built-in function (next|iter)>$"
"""Of what a frame of ours itself calls on behalf of the training."""
THREADING = r"(^|/)threading\.py(\(\d+\))?: |^(thread \(|process \d+:)"
"""Of the frames at the bottom of every thread but the main one."""
