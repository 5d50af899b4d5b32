"""The bytes of a trace come in order, each once, however they are asked for."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st

from stepscope.trace.source.content import Content


@given(
    st.lists(st.binary(min_size=1, max_size=9), max_size=9),
    st.lists(st.integers(0, 12), max_size=20),
    st.booleans(),
)
def test_every_byte_comes_once_and_in_order(
    pieces: list[bytes], asked: list[int], can_fill: bool
) -> None:
    whole = b"".join(pieces)
    stream = io.BytesIO(whole)
    read = iter(lambda: stream.read(5), b"")
    content = Content(read, 5, stream.readinto) if can_fill else Content(pieces, 5)
    found = b""
    for size in asked:
        left = whole[len(found) :]
        if size % 3 == 0:
            assert content.look_ahead(size) is (len(left) <= size)
        if size % 4 == 0:
            assert left.startswith(content.peek())
            assert bool(content.peek()) is bool(left)
        if size == 0:
            found += next(content, b"")
            continue
        target = bytearray(size)
        count = content.read_into(memoryview(target))
        found += bytes(target[:count])
        assert count == size or found == whole
    assert found + b"".join(content) == whole
