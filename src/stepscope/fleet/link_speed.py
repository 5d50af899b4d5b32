"""Link speeds as a person states them: `400Gbps`, `50GB/s`, `tensor=900GB/s`.

Definitions
    A link speed is what one rank can send in one direction at once, over all its links to the other
    ranks of a group. It compares with the bus bandwidth of nccl-tests, which is independent of the
    number of ranks.
    b is a bit and B a byte (eight bits); M, G and T are powers of ten, as makers of links use them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from stepscope.errors import UsageError

_SPEED = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?([MGT])(b|bit|B)(?:ps|/s)")
_GIGA = {"M": 1e-3, "G": 1.0, "T": 1e3}
_BITS_PER_BYTE = 8
_HOW = "write bits as 400Gbps or bytes as 50GB/s (400 Gbps are 50 GB/s)"


@dataclass(frozen=True)
class LinkSpeeds:
    """Stated link speeds.

    Attributes:
        of_all_gb_per_s: For every dimension of parallelism without one of its own; None: unstated.
        by_dimension_gb_per_s: Those of single dimensions, such as "tensor".
    """

    of_all_gb_per_s: float | None = None
    by_dimension_gb_per_s: dict[str, float] = field(default_factory=dict)

    def gb_per_s(self, dimension: str) -> float | None:
        """The link speed of the groups of a dimension; None if it is unstated."""
        return self.by_dimension_gb_per_s.get(dimension, self.of_all_gb_per_s)


def link_speeds(texts: Sequence[str]) -> LinkSpeeds | None:
    """Reads link speeds: each `SPEED`, or `DIMENSION=SPEED`. None if there are none."""
    speeds: dict[str, float] = {}
    for text in texts:
        # A dimension may contain any character, a speed no "=".
        dimension, _, speed = text.rpartition("=")
        dimension = dimension.strip()
        if dimension in speeds:
            of = f" of {dimension}" if dimension else ""
            raise UsageError(f"--link-speed {text}: the link speed{of} is stated twice")
        speeds[dimension] = _gb_per_s(text, speed.strip())
    if not speeds:
        return None
    return LinkSpeeds(speeds.pop("", None), speeds)


def _gb_per_s(text: str, speed: str) -> float:
    found = _SPEED.fullmatch(speed)
    if found is None:
        raise UsageError(f"--link-speed {text}: {speed!r} is no speed with a unit: {_HOW}")
    number, prefix, unit = found.groups()
    gb_per_s = float(number) * _GIGA[prefix] / (1 if unit == "B" else _BITS_PER_BYTE)
    if not gb_per_s:
        raise UsageError(f"--link-speed {text}: a link speed is greater than 0")
    return gb_per_s
