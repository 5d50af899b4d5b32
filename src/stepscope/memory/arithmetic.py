"""What loops need that run as machine code, and as plain Python in the tests that check them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np

as_long = cast("Callable[[Any], int]", np.int64)
"""A number as a signed one of 64 bits; in plain Python, elements of narrow arrays overflow."""
