"""Calls of listeners from inside the training's own calls."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

log = logging.getLogger("stepscope")
_Result = TypeVar("_Result")


def attempt(call: Callable[..., _Result], *given: Any) -> _Result | None:
    """Call a listener. It runs inside the training's own calls, so it must not raise."""
    try:
        return call(*given)
    except Exception as error:
        log.debug("stepscope: listening to torch failed: %s", error, exc_info=True)
        return None
