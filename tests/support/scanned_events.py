"""Scans text with the compiled scanner, with and without patterns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stepscope.trace.formats.chrome.rows import (
    HAS_BYTES,
    HAS_CORRELATION,
    HAS_DEVICE,
    HAS_DURATION,
    HAS_EXTERNAL,
    HAS_FLOW,
    HAS_STREAM,
    HAS_TIME,
    Between,
)
from stepscope.trace.formats.chrome.scan import Scan
from stepscope.trace.formats.chrome.scanner.scan_patterns import CREDIT
from stepscope.trace.formats.chrome.scanner.scan_pieces import piece_of
from stepscope.trace.formats.chrome.scanner.scan_rows import BETWEEN, POSITION
from stepscope.trace.formats.chrome.scanner.scan_vocabularies import Vocabularies

_COLUMNS = {
    "time_ns": HAS_TIME,
    "dur_ns": HAS_DURATION,
    "flow_id": HAS_FLOW,
    "correlation": HAS_CORRELATION,
    "external_id": HAS_EXTERNAL,
    "device": HAS_DEVICE,
    "stream": HAS_STREAM,
    "bytes": HAS_BYTES,
}


@dataclass(frozen=True)
class Found:
    """What the scanner made of some text.

    Attributes:
        status: Why it stopped.
        position: Where it stopped.
        between: Its state there.
        rows: All columns, with None where a row has no value.
        recognised: How many events were like a pattern.
    """

    status: int
    position: int
    between: int
    rows: dict[str, list[Any]]
    recognised: int

    def says(self) -> tuple[object, ...]:
        """Returns all that must not depend on patterns."""
        return self.status, self.position, self.between, self.rows


def scanned(
    text: bytes,
    *,
    with_patterns: bool,
    vocabularies: Vocabularies | None = None,
    between: Between = Between.START,
) -> Found:
    """Scans the elements of a list of events, up to the first one that it hands over.

    Args:
        text: The elements.
        with_patterns: Whether events are compared with earlier ones.
        vocabularies: The names and patterns of earlier texts, to go on with.
        between: The state before the text.
    """
    vocabularies = vocabularies or Vocabularies()
    if not with_patterns:
        vocabularies.patterns.table[CREDIT] = -1
    before = vocabularies.patterns.recognised
    scan = Scan(piece_of(text, 0), between, vocabularies).run()
    found = scan.rows()
    has = found.flags
    rows: dict[str, list[Any]] = {
        "phase": found.phase.tolist(),
        "flags": has.tolist(),
        "name": [found.names.pairs[name] for name in found.name],
        "lane": [found.lanes.pairs[lane] for lane in found.lane],
        "offset": found.offset.tolist(),
        "args": found.args.to_list(),
    }
    for column, bit in _COLUMNS.items():
        values = np.where((has & bit) != 0, getattr(found, column), 0)
        rows[column] = values.tolist()
    recognised = vocabularies.patterns.recognised - before
    return Found(scan.status, int(scan.state[POSITION]), int(scan.state[BETWEEN]), rows, recognised)


def assert_patterns_change_nothing(text: bytes, between: Between = Between.START) -> int:
    """Asserts that scanning with patterns gives the same; returns how many events they had."""
    found = scanned(text, with_patterns=True, between=between)
    assert found.says() == scanned(text, with_patterns=False, between=between).says()
    return found.recognised
