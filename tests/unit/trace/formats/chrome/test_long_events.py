"""An event that reaches over very many blocks is neither copied nor scanned once per block."""

from __future__ import annotations

import pytest

from stepscope.trace.formats.chrome import scan
from stepscope.trace.source.content import Content

BLOCK_BYTES = 64
BEFORE = b'{"ph":"X","name":"a","pid":1,"tid":1,"ts":1,"dur":1,"args":{"x":'


class CountingReader(scan._Reader):
    """Counts the bytes that come into each new object with what is carried to the next block."""

    def __init__(self, *args):
        super().__init__(*args)
        self.carried = self.carry
        made.append(self)
        self.bytes_copied = 0

    def next(self, block):
        super().next(block)
        if self.carry is not self.carried:  # the earlier one still exists, so this is a copy
            self.carried = self.carry
            self.bytes_copied += len(self.carry)


made: list[CountingReader] = []


# Plain text, and objects within the event at which every block is cut, as if events began there.
@pytest.mark.parametrize(
    "value",
    [b'"' + b"y" * 40_000 + b'"', b"[" + b",".join([b'{"ph":1}'] * 4000) + b"]"],
    ids=["text", "like events"],
)
def test_work_grows_with_the_size_of_an_event_alone(monkeypatch, value):
    text = BEFORE + value + b"}}]"
    blocks = [text[at : at + BLOCK_BYTES] for at in range(0, len(text), BLOCK_BYTES)]
    scanned = []

    def counted(text, offset):
        scanned.append(len(text))
        return piece_of(text, offset)

    piece_of = scan.piece_of
    monkeypatch.setattr(scan, "piece_of", counted)
    monkeypatch.setattr(scan, "_Reader", CountingReader)
    made.clear()
    rows = []
    content = Content(blocks, BLOCK_BYTES)
    ending = scan.read_events_compiled(b"", 0, content, lambda some: rows.append(len(some)), 2)
    assert ending.closed
    assert sum(rows) == 1
    (reader,) = made
    assert sum(scanned) < 4 * len(text)
    assert reader.bytes_copied < 4 * len(text)
