"""A condition under which a command exits with 1: a quantity above a limit, as in `gain>5%`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from stepscope.errors import UsageError

_FORM = re.compile(r"\s*(?P<what>[^>]*[^>\s])\s*>\s*(?P<limit>\d+(\.\d+)?)\s*%\s*")
_Any = TypeVar("_Any", bound="Condition")


@dataclass(frozen=True)
class Condition:
    """A condition given with `--fail-on`; each kind says in a method of its own whether it holds.

    Attributes:
        what: The quantity.
        share: The limit that it must not exceed.
        text: The condition as given.
    """

    what: str
    share: float
    text: str
    EXPECTED: ClassVar[str] = ""
    """What to write, for the message on a condition that cannot be read."""
    QUANTITIES: ClassVar[tuple[str, ...]] = ()
    """The quantities that exist; empty if only a comparison knows them."""

    @classmethod
    def parse(cls: type[_Any], text: str) -> _Any:
        """Read a condition.

        Raises:
            UsageError: It is none.
        """
        found = _FORM.fullmatch(text)
        if found is None or (cls.QUANTITIES and found["what"] not in cls.QUANTITIES):
            raise UsageError(f"--fail-on {text}: write {cls.EXPECTED}")
        return cls(found["what"], float(found["limit"]) / 100, text.strip())
