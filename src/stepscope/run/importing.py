"""Imports modules while something else is done that mostly waits, or runs in machine code."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread


@contextmanager
def importing(*modules: str) -> Iterator[None]:
    """Import modules in another thread, until the end of the block.

    An error is left to whoever imports the module where it is needed: it occurs again there.
    """
    thread = Thread(target=_import, args=(modules,), name="stepscope-import", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _import(modules: tuple[str, ...]) -> None:
    with suppress(Exception):
        for module in modules:
            importlib.import_module(module)
