"""Values cached in the store of the trace that they were made from.

Making one can take seconds; the value is small. So it is valid as long as everything that it
depends on stays the same: the trace (its store stands for that), what was asked, all other inputs,
and the code. What is read back is of the declared type, or is not used (`values.py`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from stepscope._version import __version__
from stepscope.errors import StepscopeError
from stepscope.trace.store.cached_answers import answers_beside
from stepscope.trace.store.code import code_digest
from stepscope.trace.store.origin import Key, key_of
from stepscope.trace.store.values import UnfitError, from_json, to_json

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class CachedValue(Generic[_Value]):
    """A value that is in the cache, or can go there.

    Attributes:
        kind: Its type, a dataclass.
        trace: The trace in whose store it is cached; None: it is not cached.
        rooms: Packages whose code decides what the value is.
        depends_on: Returns everything else that the value depends on, as `json.dumps` takes it;
            None if some of it cannot be identified: then the value is not cached. It is called
            before the value is made, and again afterwards.
        fits: Whether a value can be one of this trace. A store can come from anyone: a value in it
            may not name another file to be opened.
    """

    kind: type[_Value]
    trace: Path | None
    rooms: tuple[str, ...]
    depends_on: Callable[[], Any]
    fits: Callable[[_Value], bool]

    def find(self) -> _Value | None:
        """The cached value; None without one that is still valid."""
        try:
            answers = None if self.trace is None else answers_beside(self.trace)
            key = None if answers is None else self._key(self.depends_on())
            text = None if answers is None or key is None else answers.read(key)
            found = None if text is None else from_json(self.kind, json.loads(text))
        except (StepscopeError, ValueError, OSError, RecursionError):
            return None
        return found if found is not None and self.fits(found) else None

    def make(self, make: Callable[[], _Value]) -> _Value:
        """Make the value, and cache it if nothing that it depends on changed meanwhile."""
        before = self._state()
        made = make()
        if before is not None and self.trace is not None and self.fits(made):
            self._keep(made, before, self.trace)
        return made

    def _keep(self, made: _Value, before: _State, trace: Path) -> None:
        try:
            answers = answers_beside(trace)
            key = self._key(before.depends_on)
            if answers is None or key is None or self._state() != before:
                return
            text = json.dumps(to_json(self.kind, made), separators=(",", ":"))
        except (StepscopeError, UnfitError, OSError):
            return
        answers.keep(key, text)

    def _state(self) -> _State | None:
        """What the trace and all else are now; None if that cannot be told."""
        if self.trace is None:
            return None
        try:
            trace, inputs = key_of(self.trace), self.depends_on()
        except (StepscopeError, UnfitError, OSError):
            return None
        return None if trace is None or inputs is None else _State(trace, inputs)

    def _key(self, depends_on: Any) -> str | None:
        """Stands for all that the value depends on; None if some of it cannot be identified."""
        code = [code_digest(room) for room in self.rooms]
        if depends_on is None or None in code:
            return None
        everything = [self.kind.__name__, __version__, code, depends_on]
        return hashlib.blake2b(json.dumps(everything).encode("ascii"), digest_size=16).hexdigest()


@dataclass(frozen=True)
class _State:
    """What a value depends on, at one moment.

    Attributes:
        trace: Identifies the trace.
        depends_on: All else.
    """

    trace: Key
    depends_on: Any
