"""Calls of our own code from inside the training's own calls."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

log = logging.getLogger("stepscope")
_Result = TypeVar("_Result")


def attempt(call: Callable[..., _Result], *given: Any) -> _Result | None:
    """Call it. It runs inside the training's own calls, so it must not raise."""
    try:
        return call(*given)
    except Exception as error:  # noqa: BLE001 - the training must go on
        missed(error)
        return None


def missed(error: Exception) -> None:
    """Log that something the training did was not noticed."""
    log.debug("stepscope: listening to torch failed: %s", error, exc_info=error)
